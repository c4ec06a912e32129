"""How much is kept, and how long a request may be."""

from __future__ import annotations

from dataclasses import replace

from labs.probe import sent as kinds
from labs.probe.judgement import judge
from labs.probe.observation import Rung
from tests.labs.probe.fake_sight import LAW, OTHER, VLLM, changed, sight, usage
from tests.labs.probe.verdicts import faults, text_of, verdict


def test_a_pool_that_keeps_too_little_is_a_fault():
    seen = sight(replace(VLLM, pool_tokens=1_040, max_model_len=1_024), LAW)
    assert verdict(seen, "pool") is None, "only --stress looks"
    seen.rungs = [Rung(1_024, 257, 0)]
    assert verdict(seen, "pool") == ("fault", "strong")
    seen = sight(replace(VLLM, pool_tokens=10_000), LAW, prompt_tokens=4_000)
    assert verdict(seen, "pool") == ("fault", "certain")
    assert "2 prompts of 4,000: with more than that in turn" in text_of(seen, "pool"), "nobody was seen to push any out"


def test_a_pool_smaller_than_a_request_is_a_fault_without_stress():
    seen = sight(replace(VLLM, pool_tokens=320), LAW)
    assert verdict(seen, "pool") == ("fault", "certain") and "320 tokens, less than one request may have (8,192)" in text_of(
        seen, "pool"
    )
    assert verdict(sight(replace(VLLM, pool_tokens=6_000), LAW), "pool") is None, "usual prompts fit several times"
    seen = sight(replace(VLLM, pool_tokens=2_000, max_model_len=1_024), LAW)
    changed(seen, lambda one: replace(one, usage=usage(600, 0)), kinds.KEPT)
    assert verdict(seen, "pool") == ("fault", "strong") and "what came between pushes it out" in text_of(seen, "pool")


def test_own_prompts_that_no_request_may_have_are_told_first_and_blame_nothing_else():
    seen = sight(law=LAW, prompt_tokens=20_000)
    assert (judge(seen)[0].name, verdict(seen, "length")) == ("length", ("fault", "certain"))
    assert faults(seen) == ["length"] and "what a request may have here, 8,192 tokens" in text_of(seen, "length")
    seen = sight(OTHER, LAW, prompt_tokens=3_000)
    seen.longest_refused = 2_999
    assert verdict(seen, "length") == ("fault", "strong")


def test_a_pool_that_forgets_at_its_size_is_expected_and_much_sooner_a_fault():
    seen = sight(replace(VLLM, pool_tokens=16_000), LAW)
    seen.rungs = [Rung(8_192, 257, 256), Rung(16_384, 257, 0)]
    assert verdict(seen, "pool") == ("expected", "strong")
    seen.facts = replace(VLLM, pool_tokens=100_000)
    assert verdict(seen, "pool") == ("fault", "strong")
    seen.rungs = seen.rungs[:1]
    assert verdict(seen, "pool") == ("fine", "strong")
