"""A model's parameters, counted from its config.json: published totals, transformers' own count, and what is refused."""

import json
import os

import pytest

from engine.cost_model import MODELS, model_shape
from engine.errors import ConfigError
from engine.model_shape import MAX_FILE_BYTES, count_parameters, read_model_shape, shape_from_config

# As in the config.json of meta-llama/Meta-Llama-3-8B.
LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
TINY = {
    "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64,
}  # fmt: skip


def test_llama_3_8b_has_8_030_261_248_parameters():
    assert count_parameters(LLAMA_3_8B) == 8_030_261_248
    assert count_parameters({**LLAMA_3_8B, "tie_word_embeddings": True}) == 8_030_261_248 - 128_256 * 4096


@pytest.mark.parametrize(
    "name, num_parameters",
    [
        ("llama-3-8b", 8_030_000_000),  # rounded, as the worked numbers of the laws take it
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("qwen2.5-7b", 7_615_616_512),
        ("mistral-7b-v0.3", 7_248_023_552),
        ("smollm2-135m", 134_515_008),
        ("smollm2-1.7b", 1_711_376_384),
    ],
)
def test_the_table_has_the_parameters_that_the_checkpoints_have(name, num_parameters):
    assert model_shape(name).num_parameters == num_parameters


def test_every_model_of_the_table_is_consistent():
    for shape in MODELS:
        assert shape.num_heads % shape.num_kv_heads == 0
        assert shape.head_dim in (64, 128)
        assert f"config.json of {shape.aliases[0]}" in shape.source


@pytest.mark.parametrize(
    "family, fields",
    [
        ("llama", {}),
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True}),
        ("llama", {"head_dim": 20}),
        ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"head_dim": 24, "sliding_window": None}),
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {}),
        ("qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    ],
)
def test_the_count_is_that_of_the_model_transformers_builds(family, fields):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = {**TINY, "model_type": family, **fields}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    assert count_parameters(config) == model.num_parameters()


def test_a_config_gives_the_shape_the_cost_depends_on(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_3_8B))
    for path in (folder, folder / "config.json"):
        shape = read_model_shape(path)
        assert (shape.name, shape.num_parameters) == ("my-llama", 8_030_261_248)
        assert (shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim) == (32, 32, 8, 128)
        assert (shape.vocab_size, shape.max_model_len) == (128_256, 8192)
        assert str(path) in shape.source
    (tmp_path / "other.json").write_text(json.dumps(LLAMA_3_8B))
    assert read_model_shape(tmp_path / "other.json").name == "other"


def test_a_llama_without_key_value_heads_has_one_for_each_query_head():
    old = {name: value for name, value in LLAMA_3_8B.items() if name != "num_key_value_heads"}
    assert shape_from_config(old, "old", "here").num_kv_heads == 32
    assert count_parameters(old) == count_parameters({**old, "num_key_value_heads": 32})


@pytest.mark.parametrize(
    "fields, line",
    [
        ({"model_type": "qwen3_moe"}, "model_type is 'qwen3_moe'; accepted: llama, mistral, qwen2, qwen3; no mixtures"),
        ({"model_type": None}, "model_type is None; accepted: llama, "),
        ({"num_local_experts": 8}, "num_local_experts is 8; accepted: none"),
        ({"hidden_size": None}, "hidden_size is None; accepted: a whole number from 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; accepted: "),
        ({"vocab_size": "many"}, "vocab_size is 'many'; accepted: "),
        ({"vocab_size": 128_256.0}, "vocab_size is 128256.0; accepted: "),
        ({"num_attention_heads": True}, "num_attention_heads is True; accepted: "),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5; accepted: a divisor of num_attention_heads, which is 32"),
        ({"hidden_size": 4097}, "hidden_size is 4097; accepted: a multiple of num_attention_heads, which is 32"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window is 4096; accepted: null"),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True}, "sliding_window is 4096; accepted: "),
    ],
)
def test_what_the_count_or_the_laws_would_be_wrong_for_is_refused(fields, line):
    with pytest.raises(ConfigError) as failure:
        shape_from_config({**LLAMA_3_8B, **fields}, "a model", "here")
    assert str(failure.value).startswith(line)


@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": 4096},
        {"model_type": "qwen2", "sliding_window": 4096},
        {"model_type": "mistral", "sliding_window": 8192},
    ],
)
def test_a_window_that_is_off_or_holds_every_prompt_is_no_window(fields):
    shape_from_config({**LLAMA_3_8B, **fields}, "a model", "here")


@pytest.mark.parametrize(
    "content, reason", [(None, "No such file"), (b"{", "not JSON"), (b"\xff", "not JSON"), (b"[1]", "not a JSON object")]
)
def test_a_file_that_is_no_config_is_refused_by_its_name(tmp_path, content, reason):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as failure:
        read_model_shape(path)
    assert failure.value.value == str(path)


def test_what_is_no_regular_file_or_too_large_is_refused_without_reading_on(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.json").write_text(" " * (MAX_FILE_BYTES + 1))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name, reason in (("pipe", "not a regular file"), ("large.json", "larger than 1 MiB"), ("deep.json", "not JSON")):
        with pytest.raises(ConfigError, match=reason):
            read_model_shape(tmp_path / name)
    with pytest.raises(ConfigError, match="zero is not a regular file"):
        read_model_shape("/dev/zero")


@pytest.mark.parametrize("value", [0, -1, True, 1.5, float("nan"), 10**9 + 1, "8", None])
def test_a_number_of_a_config_is_whole_and_of_a_size_that_models_have(value):
    with pytest.raises(ConfigError, match="num_hidden_layers is .*accepted: a whole number from 1 to 1,000,000,000"):
        shape_from_config({**LLAMA_3_8B, "num_hidden_layers": value}, "a model", "here")
