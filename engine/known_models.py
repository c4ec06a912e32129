"""The models that are known by name: their config.json's fields, from which their parameters are counted.

`head_dim` stands only where config.json has it, and where it is not hidden_size / num_attention_heads.
"""

from __future__ import annotations

from dataclasses import replace

from engine.model_shape import ModelShape, shape_from_config
from engine.named_entry import find_named


def _model(
    name: str, hub_id: str, family: str, hidden: int, inner: int, layers: int, heads: int, kv_heads: int,
    vocab: int, max_len: int, *, head_dim: int | None = None, tied: bool = False, aliases: tuple[str, ...] = (),
) -> ModelShape:  # fmt: skip
    """One line of the table below, with the fields of config.json in the order they have there."""
    config = dict(
        model_type=family, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=vocab, max_position_embeddings=max_len,
        head_dim=head_dim, tie_word_embeddings=tied,
    )  # fmt: skip
    tied_note = ", tied embedding once" if tied else ""
    source = f"config.json of {hub_id}; parameters counted from it{tied_note}"
    return shape_from_config(config, name, source, (hub_id, *aliases))


# The worked numbers of the laws take the model card's "8.03B": 8,030,261,248 would be counted.
_LLAMA_3_8B = replace(
    _model("llama-3-8b", "meta-llama/Meta-Llama-3-8B", "llama", 4_096, 14_336, 32, 32, 8, 128_256, 8_192, aliases=("llama3-8b",)),
    num_parameters=8_030_000_000,
    source="config.json of meta-llama/Meta-Llama-3-8B; parameters rounded as on its model card",
)

MODELS = (
    _LLAMA_3_8B,
    _model("llama-3-70b", "meta-llama/Meta-Llama-3-70B", "llama", 8_192, 28_672, 80, 64, 8, 128_256, 8_192),
    _model("llama-3.1-8b", "meta-llama/Llama-3.1-8B", "llama", 4_096, 14_336, 32, 32, 8, 128_256, 131_072),
    _model("llama-3.2-1b", "meta-llama/Llama-3.2-1B", "llama", 2_048, 8_192, 16, 32, 8, 128_256, 131_072, tied=True),
    _model("llama-3.2-3b", "meta-llama/Llama-3.2-3B", "llama", 3_072, 8_192, 28, 24, 8, 128_256, 131_072, tied=True),
    _model("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", "llama", 8_192, 28_672, 80, 64, 8, 128_256, 131_072),
    _model("qwen3-0.6b", "Qwen/Qwen3-0.6B", "qwen3", 1_024, 3_072, 28, 16, 8, 151_936, 40_960, head_dim=128, tied=True),
    _model("qwen3-4b", "Qwen/Qwen3-4B", "qwen3", 2_560, 9_728, 36, 32, 8, 151_936, 40_960, head_dim=128, tied=True),
    _model("qwen3-8b", "Qwen/Qwen3-8B", "qwen3", 4_096, 12_288, 36, 32, 8, 151_936, 40_960),
    _model("qwen3-14b", "Qwen/Qwen3-14B", "qwen3", 5_120, 17_408, 40, 40, 8, 151_936, 40_960),
    _model("qwen3-32b", "Qwen/Qwen3-32B", "qwen3", 5_120, 25_600, 64, 64, 8, 151_936, 40_960, head_dim=128),
    _model("qwen2.5-7b", "Qwen/Qwen2.5-7B", "qwen2", 3_584, 18_944, 28, 28, 4, 152_064, 131_072),
    _model("mistral-7b-v0.3", "mistralai/Mistral-7B-v0.3", "mistral", 4_096, 14_336, 32, 32, 8, 32_768, 32_768),
    _model("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", "llama", 576, 1_536, 30, 9, 3, 49_152, 8_192, tied=True),
    _model("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", "llama", 2_048, 8_192, 24, 32, 32, 49_152, 8_192, tied=True),
)  # fmt: skip


def model_shape(name: str) -> ModelShape:
    """The shape of a model in the table, as `find_named` reads names. Raises ConfigError for an unknown one."""
    return find_named("model", name, MODELS)
