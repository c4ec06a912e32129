import json

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, ModelNotFound, ModelNotSupported
from engine.model.loader import load_model


def config(model, **fields):
    return EngineConfig(model=str(model), **{"dtype": "float32", "device": "cpu", **fields})


def test_a_checkpoint_folder_loads_with_its_shape_and_all_its_ends_of_text(checkpoint, capfd):
    loaded = load_model(config(checkpoint))
    assert (loaded.num_layers, loaded.num_heads, loaded.num_kv_heads, loaded.head_dim) == (2, 4, 2, 16)
    assert (loaded.vocab_size, loaded.max_model_len) == (512, 8192)
    assert loaded.eos_token_ids == {1, 7}
    assert loaded.tokenizer.encode("the cat") == [2, 3]
    assert not loaded.model.training
    assert capfd.readouterr() == ("", "")


def test_weights_are_loaded_straight_into_the_dtype_asked_for(checkpoint):
    loaded = load_model(config(checkpoint, dtype="bfloat16"))
    assert {weight.dtype for weight in loaded.model.parameters()} == {torch.bfloat16} == {loaded.dtype}


def test_random_weights_follow_the_seed_alone(tiny):
    same, other = (load_model(config("synthetic:tiny", seed=seed)) for seed in (0, 1))
    for (name, weight), (_, again), (_, different) in zip(
        tiny.model.named_parameters(), same.model.named_parameters(), other.model.named_parameters()
    ):
        assert torch.equal(weight, again), name
        assert "norm" in name or not torch.equal(weight, different), name
    torch.manual_seed(5)
    before = torch.rand(1)
    torch.manual_seed(5)
    load_model(config("synthetic:tiny"))
    assert torch.equal(torch.rand(1), before), "the global generator was used"


def test_the_best_logits_of_random_weights_are_far_apart(tiny):
    from engine.model.logits_head import LogitsHead

    hidden = torch.nn.functional.rms_norm(torch.randn(200, 64, generator=torch.Generator().manual_seed(0)), (64,))
    best = LogitsHead(tiny.model)(hidden).topk(2, dim=-1).values
    assert (best[:, 0] - best[:, 1]).median() > 0.3


def test_a_shorter_max_model_len_is_kept_and_a_longer_one_is_refused(checkpoint):
    assert load_model(config(checkpoint, max_model_len=100)).max_model_len == 100
    with pytest.raises(ConfigError, match="max_model_len is 9000.*8192"):
        load_model(config(checkpoint, max_model_len=9000))


def test_a_config_without_weights_is_not_a_model(checkpoint, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    with pytest.raises(ModelNotFound, match="no weights") as caught:
        load_model(config(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_model_type_that_transformers_does_not_know_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    with pytest.raises(ModelNotSupported, match="abacus"):
        load_model(config(tmp_path))


def test_a_refusal_comes_before_weights_are_looked_for(config_folder):
    with pytest.raises(ModelNotSupported, match="sliding-window"):
        load_model(config(config_folder("mistral", sliding_window=4096, max_position_embeddings=32_768)))


def test_a_device_that_is_not_there_is_refused_first(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device is 'cuda'"):
        load_model(EngineConfig(model="synthetic:tiny", device="cuda"))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "encoder-decoder"),
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "recurrent state"),
        ({"model_type": "bloom", "architectures": ["BloomForCausalLM"]}, "ALiBi"),
    ],
)
def test_a_model_of_the_wrong_kind_is_refused_for_its_kind_not_for_its_length(tmp_path, config, reason):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelNotSupported, match=reason):
        load_model(EngineConfig(model=str(tmp_path), device="cpu"))
