"""Other weights under a running engine: one seed one update, the old model untouched, stale K/V until a reset."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.llm_engine import LLMEngine
from engine.model.loader import load_model
from engine.model.model_runner import ModelRunner
from engine.model.weight_update import updated_weights
from engine.request import SamplingParams

PROMPT = list(range(40, 90))
CONFIG = EngineConfig(device="cpu")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def engine_of(loaded):
    return LLMEngine(CONFIG, ModelRunner(loaded, CONFIG))


def output(engine):
    (done,) = engine.generate([PROMPT], GREEDY)
    return done.output_token_ids, done.num_cached_tokens


def test_one_seed_is_one_update_and_the_old_model_stays(tiny):
    before = {name: weight.clone() for name, weight in tiny.model.named_parameters()}
    first, again, other = (dict(updated_weights(tiny, seed, 0.3).model.named_parameters()) for seed in (1, 1, 2))
    changed = {name for name in before if not torch.equal(before[name], first[name])}
    matrices = {name for name, weight in before.items() if weight.dim() > 1}
    assert changed == {name for name in matrices if "embed" not in name and "lm_head" not in name}
    assert all(torch.equal(first[name], again[name]) for name in before)
    assert not all(torch.equal(first[name], other[name]) for name in before)
    for name in changed:
        ratio = (first[name] - before[name]).std() / before[name].std()
        assert ratio == pytest.approx(0.3, rel=0.1)
    assert all(torch.equal(weight, before[name]) for name, weight in tiny.model.named_parameters())


def test_updated_weights_are_served_and_stale_keys_and_values_with_them_until_a_reset(tiny):
    updated = updated_weights(tiny, 0, 0.3)
    old = output(engine_of(tiny))[0]
    fresh = output(engine_of(updated))[0]
    engine = engine_of(tiny)
    assert output(engine) == (old, 0)
    engine.runner.update_weights(updated)
    stale, num_cached_tokens = output(engine)
    assert num_cached_tokens == 48 and stale != fresh and fresh != old
    assert engine.reset_prefix_cache()
    assert output(engine) == (fresh, 0)
    engine.runner.update_weights(tiny)
    assert engine.reset_prefix_cache() and output(engine) == (old, 0)


def test_weights_of_another_shape_are_refused_by_name(tiny):
    runner = engine_of(tiny).runner
    with pytest.raises(ValueError, match="num_layers is 3; accepted: 2"):
        runner.update_weights(replace(tiny, num_layers=3))
    with pytest.raises(ValueError, match="dtype is torch.bfloat16; accepted: torch.float32"):
        runner.update_weights(replace(tiny, dtype=torch.bfloat16))


def test_a_model_without_its_layers_cannot_be_updated():
    loaded = load_model(EngineConfig(model="synthetic:tiny", dtype="float32", device="cpu"))
    loaded.drop_layers()
    with pytest.raises(EngineError, match="layers were dropped"):
        updated_weights(loaded, 0, 0.3)
