"""Our decoder against the layers of the model whose weights it takes, with torch's operations and with kernels."""

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model import decoder
from engine.model.attention import SdpaAttention, register_attention
from engine.model.decoder import Decoder, has_decoder
from engine.model.kv_tensors import KVTensors
from engine.model.linear import PlainLinear
from engine.model.loader import load_model
from engine.model.model_body import TransformersBody
from engine.model.model_input import TokenSpan
from engine.model.native_decoder import NativeDecoder, has_native_decoder
from engine.model.native_kernels import NativeKernels
from engine.model.quiet import quiet_transformers

CPU = torch.device("cpu")
SHAPE = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    vocab_size=300, max_position_embeddings=512, tie_word_embeddings=False,
)  # fmt: skip


def random_model(model_type, **fields):
    from transformers import AutoConfig, AutoModelForCausalLM

    register_attention()
    with quiet_transformers(), torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(model_type, **{**SHAPE, **fields})
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
        for name, weight in model.named_parameters():
            # Biases and norms as well: zeros and ones would hide a weight that is left out.
            torch.nn.init.normal_(weight, 1.0 if "norm" in name else 0.0, 0.3 if weight.dim() == 1 else 1.5 / weight.shape[-1] ** 0.5)
    from engine.model.attention import ATTENTION_NAME

    model.set_attn_implementation(ATTENTION_NAME)
    return model


@torch.inference_mode()
def run(body, kernels=None, rows=None):
    """A prefill of 20 tokens, then a chunk of 5 behind it beside a new request of 7 and a decode: hidden states of both steps."""
    kv = KVTensors(3, 80, 1, 2, 16, torch.float32, CPU)
    order = np.random.RandomState(0).permutation(np.arange(1, 80))
    first, second, third = order[:25], order[25:32], order[32:50]

    def step(ids, positions, write, spans, rows=None):
        attention = SdpaAttention(kv, write, spans, 4, 2, kernels)
        return body(torch.tensor(ids), torch.tensor(positions), attention, rows)

    ids = np.random.RandomState(1).randint(0, 300, 60)
    step([*ids[:20], *ids[30:47]], [*range(20), *range(17)], np.concatenate([first[:20], third[:17]]),
         [TokenSpan(0, 20, 0, first[:20]), TokenSpan(20, 17, 0, third[:17])])  # fmt: skip
    return step(
        [*ids[20:25], *ids[:7], ids[47]], [*range(20, 25), *range(7), 17], np.concatenate([first[20:], second, third[17:]]),
        [TokenSpan(0, 5, 20, first), TokenSpan(5, 7, 0, second), TokenSpan(12, 1, 17, third)], rows,
    )  # fmt: skip


MODELS = pytest.mark.parametrize(
    "model_type, fields",
    [
        ("llama", {}), ("llama", {"attention_bias": True, "mlp_bias": False}), ("mistral", {"sliding_window": None}),
        ("qwen2", {"use_sliding_window": False}), ("qwen3", {}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    ],
    ids=["llama", "llama with biases", "mistral", "qwen2", "qwen3", "llama with scaled rotation"],
)  # fmt: skip


@MODELS
@pytest.mark.parametrize("tile_rows", [512, 4])
def test_it_computes_what_the_layers_compute(monkeypatch, model_type, fields, tile_rows):
    monkeypatch.setattr(decoder, "TILE_ROWS", tile_rows)
    model = random_model(model_type, **fields)
    assert has_decoder(model)
    wanted = run(TransformersBody(model))
    torch.testing.assert_close(run(Decoder(model, PlainLinear)), wanted, rtol=1e-4, atol=1e-4)
    if has_native_decoder(model):
        kernels = NativeKernels(torch.float32)
        torch.testing.assert_close(run(NativeDecoder(model, PlainLinear, kernels), kernels), wanted, rtol=1e-4, atol=1e-4)
    else:
        assert model_type == "qwen3"


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("tile_rows", [512, 4, None])
@pytest.mark.parametrize("rows", [[12], [4, 11, 12], []])
def test_rows_that_nobody_reads_change_nothing_for_the_others(monkeypatch, native, tile_rows, rows):
    monkeypatch.setattr(decoder, "TILE_ROWS", tile_rows)  # None: as on a GPU, where nothing is cut
    model = random_model("llama")
    kernels = NativeKernels(torch.float32) if native else None
    body = NativeDecoder(model, PlainLinear, kernels) if kernels else Decoder(model, PlainLinear)
    wanted = run(body, kernels)
    got = run(body, kernels, torch.tensor(rows, dtype=torch.int64))
    torch.testing.assert_close(got, wanted[rows], rtol=1e-5, atol=1e-5)


def test_the_model_still_runs_with_the_weights_it_shares():
    model = random_model("qwen2", use_sliding_window=False)
    before = run(TransformersBody(model))
    Decoder(model, PlainLinear)
    assert torch.equal(run(TransformersBody(model)), before)


@pytest.mark.parametrize("model_type, fields", [("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4}), ("llama", {"hidden_act": "gelu"})])
def test_other_models_keep_their_own_layers(model_type, fields):
    from transformers import AutoConfig, AutoModelForCausalLM

    with quiet_transformers():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**SHAPE, **fields}))
    assert not has_decoder(model)


@pytest.mark.parametrize("compile, kind", [(True, NativeDecoder), (None, NativeDecoder), (False, Decoder)])
def test_the_configuration_chooses(compile, kind):
    loaded = load_model(EngineConfig(model="synthetic:tiny", device="cpu", dtype="float32", compile=compile))
    assert type(loaded.body) is kind
    loaded.drop_layers()
    assert loaded.model.base_model.layers[0].mlp.up_proj.weight.numel() == 0
    assert run_tiny(loaded).isfinite().all()


@torch.inference_mode()
def run_tiny(loaded):
    kv = KVTensors(loaded.num_layers, 9, 1, loaded.num_kv_heads, loaded.head_dim, loaded.dtype, CPU)
    slots = np.arange(1, 6)
    attention = SdpaAttention(kv, slots, [TokenSpan(0, 5, 0, slots)], loaded.num_heads, loaded.num_kv_heads, loaded.step_kernels)
    return loaded.body(torch.arange(5), torch.arange(5), attention)


def test_half_precision_without_kernels_falls_back_unless_they_were_asked_for():
    config = EngineConfig(model="synthetic:tiny", device="cpu", dtype="float16")
    assert load_model(config).kernels is None
    with pytest.raises(ConfigError, match="compile is True"):
        load_model(config.replace(compile=True))


def test_a_decoder_whose_logits_differ_is_not_used(monkeypatch):
    wrong = Decoder._finish
    monkeypatch.setattr(Decoder, "_finish", lambda self, layer, hidden, context: wrong(self, layer, hidden, 2 * context))
    loaded = load_model(EngineConfig(model="synthetic:tiny", device="cpu", dtype="float32", compile=False))
    assert type(loaded.body) is TransformersBody


def test_kernels_that_give_other_logits_while_decoding_are_not_used(monkeypatch):
    attend = NativeKernels.attend
    monkeypatch.setattr(NativeKernels, "attend", lambda self, *tensors: attend(self, *tensors[:-1], 5 * tensors[-1]))
    loaded = load_model(EngineConfig(model="synthetic:tiny", device="cpu", dtype="float32"))
    assert type(loaded.body) is Decoder and loaded.step_kernels is None
    with pytest.raises(ConfigError, match="compile is True; accepted: false: with compiled kernels this model gives other logits"):
        load_model(EngineConfig(model="synthetic:tiny", device="cpu", dtype="float32", compile=True))


def test_layers_that_cannot_be_read_are_left_to_transformers(monkeypatch):
    def broken(self, *arguments):
        raise AttributeError("no such layer")

    monkeypatch.setattr(Decoder, "__init__", broken)
    loaded = load_model(EngineConfig(model="synthetic:tiny", device="cpu", dtype="float32"))
    assert type(loaded.body) is TransformersBody
