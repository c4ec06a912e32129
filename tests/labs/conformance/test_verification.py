"""Verification notices what differs: a corrupted value, and each rule of the engine broken on purpose."""

from __future__ import annotations

import copy
import gzip
import json

import pytest

from engine.kvcache import block_pool, kv_cache_manager, prefix_cache, radix_tree
from engine.kvcache.cache_identity import CacheIdentity
from labs.conformance.golden import GoldenError, read_scenarios
from labs.conformance.verification import verify_folder, verify_scenarios
from tests.broken_rules import name_blocks_without_their_parents


def test_the_recorded_scenarios_are_all_reproduced():
    verification = verify_folder()
    assert verification.differences == ()
    assert {part.kind: (part.num_scenarios, part.num_steps) for part in verification.parts} == {
        "manager": (53, 5_542), "scheduler": (37, 1_833), "radix": (39, 2_503),
    }  # fmt: skip
    assert all(part.num_requests > 300 for part in verification.parts)


def corrupt_hit(scenario):
    index = next(index for index, one in enumerate(scenario["expect"]) if one.get("hit"))
    scenario["expect"][index]["hit"] += 1
    return f"operation {index} ({scenario['ops'][index]['op']})", "hit: expected "


def corrupt_queue(scenario):
    scenario["final"]["queue"].reverse()
    return "the end", "queue[0]: expected "


def corrupt_step(scenario):
    step = next(step for step, one in enumerate(scenario["steps"]) if one.get("scheduled"))
    scenario["steps"][step]["scheduled"][0][1] += 1
    return f"step {step}", "scheduled[0][1]: expected "


def corrupt_slots(scenario):
    index = next(index for index, one in enumerate(scenario["expect"]) if one.get("slots"))
    scenario["expect"][index]["slots"][0][0] += 1
    return f"operation {index} ({scenario['ops'][index]['op']})", "slots[0][0]: expected "


@pytest.mark.parametrize(
    "kind, corrupt",
    [("manager", corrupt_hit), ("manager", corrupt_queue), ("scheduler", corrupt_step), ("radix", corrupt_slots)],
)
def test_one_corrupted_value_is_named_with_its_scenario_and_step(kind, corrupt):
    def fits(scenario):
        if kind == "scheduler":
            return True
        return any(one.get("hit") or one.get("slots") for one in scenario["expect"])

    scenario = copy.deepcopy(next(one for one in read_scenarios(kind) if fits(one)))
    where, what = corrupt(scenario)
    (difference,) = verify_scenarios(kind, [scenario]).differences
    assert (difference.scenario, difference.where) == (scenario["name"], where)
    assert difference.what.startswith(what)


# Rules of the engine, broken one by one: (what is broken, the recordings that must notice)


def no_parent(patch):
    patch.setattr("engine.kvcache.block_hash.BlockHasher.extend", name_blocks_without_their_parents)


def no_cap(patch):
    patch.setattr(
        kv_cache_manager.KVCacheManager,
        "get_computed_blocks",
        lambda self, request: self.prefix_cache.match(request, request.num_tokens),
    )


def heads_freed_first(patch):
    original = block_pool.BlockPool.free
    patch.setattr(
        block_pool.BlockPool,
        "free",
        lambda self, ids, content=(): original(self, reversed(list(ids)), reversed(list(content))),
    )


def content_freed_to_the_front(patch):
    original = block_pool.BlockPool.free
    patch.setattr(block_pool.BlockPool, "free", lambda self, ids, content=(): original(self, [*ids, *content]))


def published_after_the_step(patch):
    original = prefix_cache.HashPrefixCache.__init__
    after = prefix_cache.PublishRule.AFTER_STEP
    patch.setattr(prefix_cache.HashPrefixCache, "__init__", lambda self, pool, size: original(self, pool, size, after))


def salt_in_every_block(patch):
    original = CacheIdentity.extra_keys
    patch.setattr(CacheIdentity, "keyless_from", 10**9)
    patch.setattr(
        CacheIdentity,
        "extra_keys",
        lambda self, start, end: (("cache_salt", self.cache_salt),) if self.cache_salt and start else original(self, start, end),
    )


def salt_left_out(patch):
    patch.setattr(CacheIdentity, "extra_keys", lambda self, start, end: None)


def locked_nodes_evicted(patch):
    patch.setattr(radix_tree.RadixTree, "lock", lambda self, node: 0)


def last_duplicate_served(patch):
    original = prefix_cache.HashPrefixCache.match

    def match(self, request, max_tokens):
        kept = self._blocks_by_name
        self._blocks_by_name = {
            name: dict.fromkeys(reversed(list(entry))) if isinstance(entry, dict) else entry for name, entry in kept.items()
        }
        try:
            return original(self, request, max_tokens)
        finally:
            self._blocks_by_name = kept

    patch.setattr(prefix_cache.HashPrefixCache, "match", match)


@pytest.mark.parametrize(
    "break_rule, kind",
    [
        (no_parent, "manager"),
        (no_cap, "manager"),
        (heads_freed_first, "manager"),
        (content_freed_to_the_front, "manager"),
        (published_after_the_step, "manager"),
        (salt_in_every_block, "manager"),
        (salt_left_out, "manager"),
        (last_duplicate_served, "manager"),
        (no_cap, "scheduler"),
        (heads_freed_first, "scheduler"),
        (published_after_the_step, "scheduler"),
        (locked_nodes_evicted, "radix"),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_broken_rule_makes_a_recorded_scenario_differ(break_rule, kind, monkeypatch):
    break_rule(monkeypatch)
    assert verify_scenarios(kind, read_scenarios(kind)).differences


def test_a_broken_invariant_is_a_difference_and_not_the_end(monkeypatch):
    def free(self, ids, content=()):
        raise AssertionError("a block is freed once per user")

    monkeypatch.setattr(block_pool.BlockPool, "free", free)
    verified = verify_scenarios("manager", read_scenarios("manager"))
    assert verified.num_scenarios == 53
    assert any("an invariant of ours broke (a block is freed once per user)" in one.what for one in verified.differences)


def test_a_failure_of_ours_is_a_difference_and_not_the_recordings_fault(monkeypatch):
    def forget(self, block_ids):
        raise KeyError(7)

    monkeypatch.setattr(prefix_cache.HashPrefixCache, "forget", forget)
    differences = verify_scenarios("manager", read_scenarios("manager")).differences
    assert any("ours failed with KeyError (7)" in one.what for one in differences)


def test_a_run_whose_end_was_left_out_of_the_recording_is_not_taken_for_equal():
    scenario = {**read_scenarios("scheduler")[0], "final": {}}
    (difference,) = verify_scenarios("scheduler", [scenario]).differences
    assert difference.where == "the end"


# Files


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("other.txt", b"", "holds no recorded scenarios; accepted: a folder with manager.jsonl.gz"),
        ("manager.jsonl.gz", b"not gzip", r"cannot be read \(Not a gzipped file"),
        ("radix.jsonl", b"{", "line 1: not JSON"),
        ("scheduler.jsonl", b'{"name": "x"}\n', "line 1: a scenario lacks actions, arrivals, config, final, steps"),
        ("scheduler.jsonl", b"[]\n", "line 1: a scenario lacks"),
        ("radix.jsonl", b'{"name": "x", "config": {}, "ops": [], "expect": [], "final": {}}', "is not of the schema \\(KeyError"),
        ("radix.jsonl", b'{"name": "x", "config": {}, "ops": [1], "expect": [], "final": {}}', "line 1: 1 operations and 0 expectations"),
        ("manager.jsonl", b"\n", "is empty; accepted: one scenario a line"),
        ("manager.jsonl.gz", gzip.compress(b"x" * 1000, mtime=0)[:-8], "cannot be read"),
    ],
)
def test_a_folder_without_scenarios_is_refused_by_file_and_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GoldenError, match=message):
        verify_folder(tmp_path)


def test_any_folder_of_the_same_schema_can_be_replayed(tmp_path):
    scenario = read_scenarios("radix")[0]
    (tmp_path / "radix.jsonl").write_text(json.dumps(scenario) + "\n\n")
    (part,) = verify_folder(tmp_path).parts
    assert (part.kind, part.num_scenarios, part.num_steps, part.differences) == ("radix", 1, len(scenario["ops"]), ())
