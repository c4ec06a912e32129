"""Lab 02 predicts what repeats find, in both caches, and says so where no law tells."""

from __future__ import annotations

import pytest

from labs.lab_02_repeat_prompt_throughput import LAB, Config
from tests.labs.fake_session import FakeSession


def hits(config: Config) -> dict[str, tuple[object, tuple[int, ...]]]:
    report = LAB.run(FakeSession(), config)
    assert report.agrees and report.cache_state == "cold"
    return {
        one.group: (one.predicted and one.predicted.value, one.samples) for one in report.measurements if one.name == "hits"
    }


def test_twenty_repeats_find_all_but_their_last_block_and_the_first_step_s_twins():
    found = hits(Config(trials=2))
    assert found["hash cache, block 16"] == (19 * 240, (19 * 240,) * 2)
    assert found["radix cache, page 1"] == (4 * 255, (4 * 255,) * 2)  # 16 of 20 share the first step of 4,096 tokens


@pytest.mark.parametrize("config", [Config(num_prompts=3, repeat_count=4, trials=1), Config(num_prompts=5, input_tokens=1000, trials=1)])
def test_several_prompts_pay_once_each_with_the_hash_cache(config):
    predicted, samples = hits(config)["hash cache, block 16"]
    each = 16 * ((config.input_tokens - 1) // 16)
    assert samples == (config.num_prompts * (config.repeat_count - 1) * each,) and predicted == samples[0]


def test_where_no_law_tells_nothing_is_predicted():
    assert hits(Config(input_tokens=5000, repeat_count=4, trials=1))["radix cache, page 1"][0] is None
    assert hits(Config(num_prompts=5, input_tokens=1000, trials=1))["radix cache, page 1"][0] is None


def test_simulated_times_are_said_to_be_accounting():
    assert any("accounting, not physics" in line for line in LAB.run(FakeSession(), Config(trials=1)).findings)


@pytest.mark.parametrize("fields", [{"repeat_count": 1}, {"input_tokens": 1}, {"num_prompts": 257}, {"page_size": 100_000}])
def test_an_impossible_configuration_is_named(fields):
    (name, value), = fields.items()
    with pytest.raises(ValueError, match=f"{name} is {value}; accepted"):
        Config(**fields)
