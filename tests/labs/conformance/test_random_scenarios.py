"""Random scenarios are the same for the same seed, legal, and full of what can go wrong in a cache."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from engine.config import HASH_ALGORITHMS
from labs.conformance.manager_replay import ManagerReplay
from labs.conformance.prompt_stream import PromptStream
from labs.conformance.random_scenarios import BLOCK_SIZES, POOL_SIZES, random_manager_scenario, random_scheduler_scenario
from labs.conformance.scheduler_replay import SchedulerReplay

MAKERS = [random_manager_scenario, random_scheduler_scenario]
SMALL, MIDDLE, AMPLE = POOL_SIZES
SEEDS = range(25)


@pytest.mark.parametrize("make", MAKERS)
def test_a_seed_makes_the_same_scenario_and_another_makes_another(make):
    assert make(3, 20, MIDDLE) == make(3, 20, MIDDLE)
    differing = [make(3, 20, MIDDLE), make(4, 20, MIDDLE), make(3, 21, MIDDLE), make(3, 20, SMALL)]
    assert len({json.dumps(one["config"] | {"name": one["name"]}) for one in differing}) == 4


@pytest.mark.parametrize("make", MAKERS)
def test_a_scenario_survives_a_file(make):
    scenario = make(0, 20, MIDDLE)
    assert json.loads(json.dumps(scenario)) == scenario


@pytest.mark.parametrize("make", MAKERS)
def test_a_given_block_size_is_taken_and_others_are_drawn(make):
    assert make(0, 5, MIDDLE, block_size=4)["config"]["block_size"] == 4
    assert {make(seed, 1, MIDDLE)["config"]["block_size"] for seed in range(60)} == set(BLOCK_SIZES)


def test_every_hash_algorithm_is_drawn_and_the_seeded_ones_have_a_seed():
    configs = [random_manager_scenario(seed, 1, MIDDLE)["config"] for seed in range(60)]
    assert {config["hash_algo"] for config in configs} == set(HASH_ALGORITHMS)
    assert all(config["hash_seed"] for config in configs if config["hash_algo"].startswith("xxhash"))


def manager_counts(num_blocks):
    counts = Counter()
    for seed in SEEDS:
        scenario = random_manager_scenario(seed, 30, num_blocks)
        replay = ManagerReplay(scenario)
        for op in scenario["ops"]:
            status = replay.requests[op["id"]].status.value if op["op"] not in ("new", "reset", "stats") else ""
            if op["op"] == "allocate":
                assert op["lookup"] == (status != "running")
            did = replay.apply(op)
            counts.update({op["op"]: 1, "hits": did.get("hit", 0) > 0, "evictions": bool(did.get("evicted"))})
            counts["failures"] += op["op"] == "allocate" and did["new"] is None
            counts.update(key for key in ("salt", "lora", "skip_read", "prompt_logprobs", "whole", "lookahead") if key in op)
            assert did.get("count", 1) >= 1
        assert replay.num_requests == 30
    return counts


def test_a_manager_finds_hits_evictions_failures_and_preemptions_in_a_small_pool():
    counts = manager_counts(SMALL)
    assert min(counts[name] for name in ("hits", "evictions", "failures", "preempt", "append", "free", "lookup")) > 100
    assert min(counts[name] for name in ("salt", "lora", "skip_read", "prompt_logprobs", "whole", "lookahead")) > 20
    assert min(counts[name] for name in ("reset", "stats")) > 20


def test_a_manager_finds_hits_and_no_failure_in_an_ample_pool():
    counts = manager_counts(AMPLE)
    assert counts["hits"] > 200
    assert counts["failures"] == 0


def scheduler_counts(num_blocks):
    counts = Counter()
    for seed in SEEDS:
        scenario = random_scheduler_scenario(seed, 30, num_blocks)
        num_steps = scenario["actions"][-1]["step"] + 1
        *steps, end = SchedulerReplay({**scenario, "steps": [{}] * num_steps, "final": {}}).run()
        assert end.ours["drained"]
        for step in (one.ours for one in steps):
            admitted = step.get("new", []) + step.get("resumed", [])
            counts["hits"] += sum(hit > 0 for _, hit in admitted)
            for name in ("scheduled", "resumed", "preempted", "preempted_by_reset", "finished"):
                counts[name] += len(step.get(name, []))
            counts["resets"] += step.get("stats_reset", False)
        counts.update(action["do"] for action in scenario["actions"])
        counts.update(key for arrival in scenario["arrivals"] for key in ("salt", "priority", "prompt_logprobs") if key in arrival)
    return counts


def test_a_scheduler_finds_hits_preemptions_and_resets_in_a_middle_pool():
    counts = scheduler_counts(MIDDLE)
    assert min(counts[name] for name in ("hits", "preempted", "resumed", "salt", "priority", "prompt_logprobs")) > 40
    assert counts["resets"] > len(SEEDS) and counts["preempted_by_reset"] > 5
    assert counts["finished"] > 600


def test_a_scheduler_preempts_nothing_for_room_in_an_ample_pool():
    counts = scheduler_counts(AMPLE)
    assert counts["preempted"] == 0
    assert counts["hits"] > 200


def test_prompts_stay_within_their_length_and_vocabulary():
    for seed in range(20):
        stream = PromptStream(random.Random(seed), 4)
        for _ in range(50):
            prompt = stream.next_prompt()
            assert 1 <= len(prompt) <= stream.longest
            assert all(0 <= token < stream.vocab for token in prompt)
            stream.remember(prompt + [0] * 10)
