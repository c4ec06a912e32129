"""The block map tells a block in use from one kept, and content lost from content kept, in both caches."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from labs.targets.open_target import SIM_MODEL, open_target_factory
from labs.watch.block_map import BlockMap, cached_content, content_of

OPEN_TARGET = open_target_factory("sim", EngineConfig(model=SIM_MODEL))
CACHES = [{"prefix_cache": "hash", "block_size": 4}, {"prefix_cache": "radix", "page_size": 4}]
A, B = list(range(100, 110)), list(range(200, 222))  # two and five full blocks, and two tokens


def draw(fields, prompts, *, changes=False, max_tokens=1):
    target = OPEN_TARGET(**fields, num_gpu_blocks=7)
    block_map = BlockMap(target.engine, labels=("first",), changes=changes)
    with block_map.watching():
        for prompt in prompts:
            target.complete(prompt, max_tokens=max_tokens)
    return target, block_map


def test_a_hash_cache_names_blocks_before_they_are_computed_and_evicts_from_the_tail():
    target, block_map = draw(CACHES[0], [A, A, B])
    assert block_map.cells == ["AAa...", "AAa...", "xxAAAA"]
    assert block_map.labels == ["first", "2", "3"]
    assert block_map.evicted == content_of(target, A)


def test_a_tree_learns_of_pages_after_the_step_and_gives_up_whole_leaves():
    target, block_map = draw(CACHES[1], [A, A, B])
    assert block_map.cells == ["aaa...", "AAa...", "xxaaaa"]
    assert block_map.evicted == content_of(target, A)


def test_a_block_filled_anew_with_what_it_held_was_evicted():
    """Freed heads first: a prompt that lost its first block is handed its other blocks, and fills them with what they held."""
    prompt, other = list(range(100, 113)), [1, 2, 3, 4, 5, 6]  # three full blocks and a token; one and two tokens
    target = OPEN_TARGET(prefix_cache="hash", block_size=4, free_heads_first=True, num_gpu_blocks=5)
    block_map = BlockMap(target.engine)
    with block_map.watching():
        for tokens in (prompt, other, prompt):
            target.complete(tokens)
    assert block_map.cells == ["AAAa", "xccA", "Axxx"]
    first, second, third = content_of(target, prompt)
    assert block_map.evicted == [first, second, third, *content_of(target, other)]


@pytest.mark.parametrize("fields", CACHES, ids=lambda fields: fields["prefix_cache"])
def test_content_is_named_by_its_whole_prefix(fields):
    target, _ = draw(fields, [A, [1] + A[1:]])
    first, second = content_of(target, A), content_of(target, [1] + A[1:])
    assert set(cached_content(target.engine).values()) == {*first, *second} and not set(first) & set(second)


def test_steps_that_change_nothing_can_be_left_out():
    _, every = draw(CACHES[0], [A], max_tokens=6)
    _, changed = draw(CACHES[0], [A], max_tokens=6, changes=True)
    assert len(every.cells) == 6 and len(changed.cells) == len(set(every.cells)) == 3
    assert changed.labels == ["first", "3", "4"]  # block 3 fills up, then another begins


def test_the_engine_is_left_as_it_was():
    target = OPEN_TARGET(num_gpu_blocks=7)
    scheduler, cache = target.engine.scheduler, target.engine.manager.prefix_cache
    own = dict(vars(cache))
    with pytest.raises(RuntimeError), BlockMap(target.engine).watching():
        raise RuntimeError
    assert target.engine.scheduler is scheduler and vars(cache) == own
