"""Prompts of a shared prefix at sizes that fit: short where that saves time, of whole blocks where a server wants them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import ConfigError
from labs.lab_04_prefix_cache_hit_rate import Config
from labs.scenarios.prefix_workloads import fitted_workloads
from tests.labs.fake_server_target import FakeServer
from tests.labs.fake_session import FakeSession


def lengths(workload) -> tuple[int, int]:
    return len(workload.shared_ids), len(workload.tail_ids[0])


def test_in_this_process_sizes_stay_as_they_are_and_full_length_serves_twice():
    config, workloads, findings = fitted_workloads(FakeSession(), Config(), full=False)
    assert (lengths(workloads.long), lengths(workloads.short)) == ((2000, 200), (320, 16))
    assert config == Config() and workloads.aligned is None and findings == []
    assert set(workloads.digests) == {"long", "short"}
    _, workloads, _ = fitted_workloads(FakeSession(), Config(), full=True)
    assert workloads.short is workloads.long


@pytest.mark.parametrize(
    ("unit", "limit", "num_aligned", "num_told"),
    [
        (16, 8_192, None, 0),
        (32, 8_192, 4_000, 0),
        (32, 2_400, 74 * 32, 1),
        (784, 8_192, 10 * 784, 1),
        (3_000, 8_192, 6_000, 1),
        (5_000, 8_192, None, 0),
    ],
)
def test_a_server_s_block_gets_a_repeat_of_as_many_whole_blocks_as_fit(unit, limit, num_aligned, num_told):
    session = FakeSession(FakeServer(unit=unit, max_model_len=limit))
    _, workloads, findings = fitted_workloads(session, Config(shared_tokens=2 * unit + 16), full=False)
    assert num_aligned == (None if workloads.aligned is None else len(workloads.aligned.shared_ids))
    assert sum("the repeat of whole blocks has" in line for line in findings) == num_told


def test_sizes_that_nobody_typed_give_way_to_a_server_s_longest_prompt():
    session = FakeSession(FakeServer(max_model_len=300))
    config, workloads, findings = fitted_workloads(session, Config(), full=False)
    assert (config.user_tokens, config.max_shift, config.shared_tokens) == (37, 32, 300 - 37 - 8 - 2)
    assert lengths(workloads.long) == (253, 37) and "user_tokens 200 → 37" in findings[0]
    typed = replace(Config(), user_tokens=200)
    config, _, _ = fitted_workloads(FakeSession(FakeServer(max_model_len=300), typed=("user_tokens",)), typed, full=False)
    assert (config.user_tokens, config.shared_tokens) == (200, 90)


@pytest.mark.parametrize(
    ("fields", "full", "named"),
    [
        ({"shared_tokens": 9_000}, False, "shared_tokens is 9000; accepted: at most 7990"),
        ({"shared_tokens": 7_990}, False, None),
        ({"shared_tokens": 7_991}, False, "shared_tokens is 7991; accepted: at most 7990"),
        ({"short_shared_tokens": 8_144}, False, "short_shared_tokens is 8144; accepted: at most 8143"),
        ({"shared_tokens": 7_960}, True, "shared_tokens is 7960; accepted: at most 7959"),
        ({"pool_tokens": 2_201}, False, "pool_tokens is 2201; accepted: at least 2202"),
        ({"pool_tokens": 2_232}, True, "pool_tokens is 2232; accepted: at least 2233"),
    ],
)
def test_what_does_not_fit_is_named_by_the_lab_s_field_with_what_would(fields, full, named):
    if named is None:
        fitted_workloads(FakeSession(), Config(**fields), full)
        return
    with pytest.raises(ConfigError, match=named):
        fitted_workloads(FakeSession(), Config(**fields), full)
