"""Lab 04 on real K/V: a random model from ids, and SmolLM2 from text in its chat template."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from labs.lab_04_prefix_cache_hit_rate import LAB, Config
from labs.targets.open_target import open_target_factory
from tests.labs.fake_session import FakeSession

SIZES = dict(
    shared_tokens=80, user_tokens=24, short_shared_tokens=48, short_user_tokens=16,
    num_requests=3, num_failing=2, num_controls=1, max_shift=3, output_tokens=4,
)  # fmt: skip


@pytest.mark.parametrize("model", ["synthetic:tiny", "smollm2"])
def test_every_prediction_is_met_on_real_keys_and_values(model):
    session = FakeSession(open_target_factory("engine", EngineConfig(model=model, dtype="float32", device="cpu")))
    report = LAB.run(session, Config(**SIZES))
    assert report.agrees and report.cache_state == "cold"
    controls = {one.group: one for one in report.measurements if (one.row, one.name) == ("unrelated control", "first")}
    # Text controls share the chat template's head, which a cache with pages of one token finds; ids share nothing.
    assert (controls["radix cache, page 1"].samples[0] > 0) is (model == "smollm2")
    assert controls["hash cache, block 16"].samples == (0,)
    times = [one for one in report.measurements if one.unit == "s"]
    assert times and all(sample > 0 for one in times for sample in one.samples)


def test_a_half_precision_difference_is_proven_in_float32(monkeypatch):
    """The comparison is repeated in float32 when half precision parts; only that decides."""
    from labs.targets.in_process import InProcessTarget

    original = InProcessTarget.complete
    opened = []

    def complete(self, prompt_token_ids, **fields):
        completion = original(self, prompt_token_ids, **fields)
        opened.append(self.info.dtype)
        if fields.get("logprob_gaps") and self.info.dtype == "bfloat16" and completion.num_cached_tokens:
            changed = (completion.output_token_ids[0] ^ 1, *completion.output_token_ids[1:])
            completion = type(completion)(**{**completion.__dict__, "output_token_ids": changed})
        return completion

    monkeypatch.setattr(InProcessTarget, "complete", complete)
    config = EngineConfig(model="synthetic:tiny", dtype="bfloat16", device="cpu")
    report = LAB.run(FakeSession(open_target_factory("engine", config)), Config(**SIZES))
    assert report.agrees and {"bfloat16", "float32"} <= set(opened)
    assert sum("A near tie, decided by rounding" in line for line in report.findings) == 3
