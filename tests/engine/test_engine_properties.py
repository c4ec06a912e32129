"""Whatever arrives: no context is ever wrong, no block is lost or used twice, and the cache changes no output."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.kvcache.cache_identity import LoRA
from engine.llm_engine import LLMEngine
from engine.request import SamplingParams
from tests.engine.content_runner import ContentRunner

# Few different tokens and heads in common: prompts collide, nest and part inside blocks.
HEADS = [[1] * 9, [1] * 4 + [2] * 9, [3, 4] * 8]
PROMPTS = st.builds(lambda head, tail: HEADS[head] + tail, st.integers(0, 2), st.lists(st.integers(1, 3), max_size=14))
REQUESTS = st.tuples(
    PROMPTS,
    st.integers(1, 12),  # max_tokens
    st.sampled_from([None, None, "a", "b"]),  # salt
    st.sampled_from([None, None, LoRA("a", "/1"), LoRA("a", "/2")]),
    st.sampled_from([None, None, None, 0]),  # prompt_logprobs
    st.integers(0, 2),  # priority
    st.integers(0, 4),  # steps before the next arrival
    st.sampled_from([False, False, False, True]),  # aborted two steps later
)
CONFIGS = st.builds(
    lambda cache, unit, budget, seats, policy, chunked, pool, watermark: EngineConfig(
        prefix_cache=cache, block_size=unit, page_size=unit, num_gpu_blocks=-(-pool // unit) + 1, policy=policy,
        max_num_batched_tokens=budget if chunked else 64, max_num_seqs=seats, enable_chunked_prefill=chunked, watermark=watermark,
    ),
    st.sampled_from(["hash", "radix"]), st.sampled_from([1, 2, 4, 16]), st.integers(1, 40), st.integers(1, 5),
    st.sampled_from(["fcfs", "priority"]), st.booleans(), st.integers(48, 100), st.sampled_from([0.0, 0.1]),
)  # fmt: skip


def check_blocks(engine: LLMEngine) -> None:
    pool, manager = engine.manager.pool, engine.manager
    free = set(pool.free_queue.all_ids())
    assert len(free) == pool.num_free and 0 not in free
    users = [0] * pool.num_blocks
    for request in engine.scheduler.running:
        table = manager.block_table(request)
        assert len(set(table)) == len(table)
        for block_id in table:
            users[block_id] += 1
    tree = getattr(manager.prefix_cache, "tree", None)
    if tree is not None:
        for node in tree.nodes():
            for slot in node.slots[:: engine.config.page_size]:
                users[slot // engine.config.page_size] += 1
        assert tree.total_size == sum(len(node.tokens) for node in tree.nodes())
    assert users[1:] == pool.ref_counts[1:]
    assert all((block_id in free) is (users[block_id] == 0) for block_id in range(1, pool.num_blocks))


def serve(config: EngineConfig, arrivals) -> dict[str, list[int]]:
    engine = LLMEngine(config, ContentRunner())
    outputs: dict[str, list[int]] = {}
    aborts: dict[int, str] = {}
    step = 0

    def advance() -> None:
        nonlocal step
        for output in engine.step():
            outputs[output.request_id] = output.output_token_ids
        if step in aborts:
            engine.abort_request(aborts[step])
            outputs.pop(aborts[step], None)
        check_blocks(engine)
        step += 1

    for number, (prompt, max_tokens, salt, lora, logprobs, priority, gap, aborted) in enumerate(arrivals):
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, prompt_logprobs=logprobs)
        request_id = engine.add_request(
            prompt, params, request_id=f"r{number}", cache_salt=salt, lora=lora, priority=priority
        )
        if aborted:
            aborts[step + 2] = request_id
        for _ in range(gap):
            advance()
    while engine.has_unfinished_requests:
        assert step < 3000, "a request that fits must end"
        advance()
    assert engine.manager.num_available == engine.manager.pool.num_usable
    assert engine.reset_prefix_cache() and engine.manager.pool.num_free == engine.manager.pool.num_usable
    aborted_ids = {f"r{number}" for number, arrival in enumerate(arrivals) if arrival[-1]}
    return {request_id: tokens for request_id, tokens in outputs.items() if request_id not in aborted_ids}


@settings(max_examples=150, deadline=None)
@given(CONFIGS, st.lists(REQUESTS, min_size=1, max_size=8))
def test_no_context_is_wrong_no_block_is_lost_and_no_output_changes(config, arrivals):
    assert serve(config, arrivals) == serve(config.replace(enable_prefix_caching=False), arrivals)
