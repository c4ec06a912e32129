import pytest
import torch

from engine.errors import ModelNotSupported
from engine.model.attention import register_attention
from engine.model.model_support import check_config, check_forward
from engine.model.quiet import quiet_transformers

TINY = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    vocab_size=300, max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


def config_of(model_type, **fields):
    from transformers import AutoConfig

    with quiet_transformers():
        return AutoConfig.for_model(model_type, **fields)


def random_model(model_type, **fields):
    from transformers import AutoModelForCausalLM

    with quiet_transformers(), torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config_of(model_type, **{**TINY, **fields}), dtype=torch.float32).eval()
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, 0.0, 1.5 / weight.shape[-1] ** 0.5)
    return model


def check(model):
    register_attention()
    heads = model.config.num_attention_heads
    kv_heads = getattr(model.config, "num_key_value_heads", None) or heads
    check_forward(model, model.config.num_hidden_layers, heads, kv_heads, 16, torch.device("cpu"))


@pytest.mark.parametrize(
    "model_type, fields, reason",
    [
        ("bart", {}, "encoder-decoder"),
        ("bert", {}, "not causal"),
        ("llama", {"is_causal": False}, "not causal"),
        ("mistral", {"sliding_window": 4096}, "sliding-window attention over 4096"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}, "sliding-window"),
        ("gemma3_text", {}, "sliding-window"),
        ("llama4_text", {}, "chunked_attention"),
        ("gemma2", {"layer_types": ["full_attention"] * 26}, "soft-capping"),
        ("gpt_oss", {"layer_types": ["full_attention"] * 36}, "attention sinks"),
        ("mamba", {}, "recurrent state"),
        ("qwen3_next", {}, "recurrent state"),
        ("minimax", {}, "linear_attention"),
        ("lfm2", {"layer_types": ["conv"] * 30 + ["full_attention"] * 2}, "hybrid layers"),
        ("bloom", {}, "ALiBi"),
        ("falcon", {"alibi": True}, "ALiBi"),
        ("deepseek_v3", {}, "latent attention"),
        ("gemma3", {}, "several models"),
        ("phi3", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 48,
                  "long_factor": [2.0] * 48, "original_max_position_embeddings": 4096}}, "at most 4096"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0,
                   "original_max_position_embeddings": 2048}}, "at most 2048"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_served_exactly_is_refused_by_name_of_the_reason(model_type, fields, reason):
    config = config_of(model_type, **fields)
    with pytest.raises(ModelNotSupported, match=reason) as caught:
        check_config(config, max_model_len=8192)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "model_type, fields",
    [
        ("llama", {}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 64}),
        ("gpt_neox", {}),
        ("gpt2", {}),
        ("bert", {"is_decoder": True}),
    ],
)
def test_causal_decoders_with_full_attention_are_accepted(model_type, fields):
    check_config(config_of(model_type, **fields), max_model_len=8192)


def test_a_window_that_no_request_outgrows_is_no_window():
    check_config(config_of("mistral", sliding_window=4096), max_model_len=4096)


@pytest.mark.parametrize(
    "model_type, fields",
    [
        ("llama", {}),
        ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "num_key_value_heads": 4}),
        ("gpt_neox", {"num_key_value_heads": 4}),
        ("opt", {"word_embed_proj_dim": 64, "ffn_dim": 96, "num_key_value_heads": 4}),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
        ("granite", {"logits_scaling": 8.0, "attention_multiplier": 0.1}),
        ("cohere", {"logit_scale": 0.0625}),
    ],
)
def test_the_paged_forward_of_a_supported_architecture_equals_its_own(model_type, fields):
    check(random_model(model_type, **fields))


def test_a_model_that_changes_its_logits_in_a_way_of_its_own_is_refused():
    model = random_model("llama")
    forward = model.forward

    def shifted(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits = output.logits + 1.0 * torch.arange(output.logits.shape[-1]) / 100
        return output

    model.forward = shifted
    with pytest.raises(ModelNotSupported, match="differ"):
        check(model)


def test_a_model_that_carries_state_between_tokens_outside_attention_is_refused():
    model = random_model("llama")
    layer = model.model.layers[0].mlp
    forward = layer.forward
    layer.forward = lambda hidden: forward(hidden + 0.5 * torch.nn.functional.pad(hidden, (0, 0, 1, 0))[:, :-1])
    with pytest.raises(ModelNotSupported, match="differ"):
        check(model)


def test_a_model_that_calls_attention_twice_in_a_layer_is_refused():
    with pytest.raises(ModelNotSupported, match="attention interface 4 times"):
        check(random_model("diffllama"))


def test_layers_with_other_heads_than_the_config_names_are_refused():
    model = random_model("llama")
    register_attention()
    with pytest.raises(ModelNotSupported, match="heads"):
        check_forward(model, 2, 4, 4, 16, torch.device("cpu"))
