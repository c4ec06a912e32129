"""One prompt's hashing, beside tokenising and prefill."""

import pytest

from engine.config import EngineConfig
from engine.cost_model import gpu_by_name, model_shape
from engine.errors import ConfigError
from labs import theory
from labs.benches.prompt_cost import PromptCost, prefill_by_cost_model, prefill_on_engine, time_tokenising, tokenise
from labs.diagnose.prompt_file import PromptFile
from labs.targets.base import TargetError
from labs.targets.open_target import SIM_MODEL, open_target_factory


def test_messages_are_tokenised_in_the_chat_template(byte_tokenizer):
    messages = [{"role": "user", "content": "Hi"}]
    assert bytes(tokenise(PromptFile(messages=messages), byte_tokenizer)).decode() == "[user]\nHi\n[assistant]\n"
    assert tokenise(PromptFile(text="Hi"), byte_tokenizer) == [72, 105]
    assert len(time_tokenising(PromptFile(text="Hi"), byte_tokenizer, 3)) == 3


def test_the_cost_models_prefill_is_the_laws():
    prefill = prefill_by_cost_model(2_200, "llama-3-8b", "h100 sxm")
    expected = theory.prefill_seconds(model_shape("llama-3-8b"), gpu_by_name("H100 SXM"), 0.45, 0, 2_200)
    assert prefill.samples_s == (expected,) and prefill.best_s == pytest.approx(0.0822, abs=1e-4)
    assert "cost model" in prefill.basis
    with pytest.raises(ConfigError, match="accepted: H100 SXM"):
        prefill_by_cost_model(10, "llama-3-8b", "Z80")


def test_an_engine_prefills_the_whole_prompt_each_time():
    opened = []
    inside = open_target_factory("sim", EngineConfig(model=SIM_MODEL))
    prefill = prefill_on_engine(list(range(100)), lambda **fields: opened.append(inside(**fields)) or opened[-1], trials=3)
    assert len(prefill.samples_s) == 3 and prefill.samples_s[0] == pytest.approx(prefill.samples_s[2])
    assert opened[0].info.prefix_cache == "none"
    with pytest.raises(TargetError, match="beyond the model's vocabulary; accepted: 0 to"):
        prefill_on_engine([1, 2**30], inside, trials=1)


def test_blocks_and_the_tail_are_counted():
    prompt = PromptCost("text", 100, 16, (), (), prefill_by_cost_model(100, "llama-3-8b", "L4"))
    assert (prompt.num_blocks, prompt.num_unnamed) == (6, 4)
