"""ModelShape: what of a model its cost depends on, read from its config.json; no weights are needed.

Decoders of four families (model_type llama, mistral, qwen2, qwen3) are built of the same parts, so that their
parameters can be counted, to the last one. With hidden size H, intermediate size I, h query heads and k key/value
heads of d values each, L layers and V tokens in the vocabulary:

    each layer    H·h·d + 2·H·k·d + h·d·H    queries, keys, values, output
                  3·H·I                      gate, up, down
                  2·H                        two norms
                  (h + 2·k)·d                biases of queries, keys, values: always in qwen2, else with attention_bias
                  H                          bias of the output: with attention_bias
                  2·I + H                    biases of gate, up, down: with mlp_bias, in llama
                  2·d                        norms of queries and keys, in qwen3
    once          V·H                        embedding; twice unless the output head is tied to it
                  H                          last norm

Other families are refused: a mixture of experts computes with some of its parameters only, and layers with a
sliding window attend to some of the positions only, so that the laws of the cost model would not hold for them.
"""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from engine.errors import ConfigError

MAX_FILE_BYTES = 2**20  # a config.json has a few thousand
MAX_FIELD = 10**9  # of each number in it
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # values of model_type

# Their configurations leave these out where the value is the family's default in transformers.
_DEFAULT_HEAD_DIM = {"qwen3": 128}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class ModelShape:
    """What of a model its cost depends on."""

    name: str
    num_parameters: int
    num_layers: int
    num_heads: int  # query heads
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int  # tokens
    source: str
    aliases: tuple[str, ...] = ()


def read_model_shape(path: str | Path) -> ModelShape:
    """The shape of the model whose config.json, or the folder that holds it, is at `path`.

    Raises ConfigError for a file that is none, or that describes a model whose parameters are not counted here.
    """
    file = Path(path).expanduser()
    file = file / "config.json" if file.is_dir() else file
    accepted = "a model's config.json, or the folder that holds it"
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a device or a pipe may never end
            raise ConfigError("config", str(path), f"{accepted} ({file.name} is not a regular file)")
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        config = json.loads(data.decode("utf-8")) if len(data) <= MAX_FILE_BYTES else None
    except OSError as error:
        raise ConfigError("config", str(path), f"{accepted} ({file.name}: {error.strerror})") from None
    except ConfigError:  # ours, and a ValueError too
        raise
    except (ValueError, RecursionError):  # neither UTF-8 nor JSON, or nested deeper than JSON is read
        raise ConfigError("config", str(path), f"{accepted} ({file.name} is not JSON)") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError("config", str(path), f"{accepted} ({file.name} is larger than {MAX_FILE_BYTES // 2**20} MiB)")
    if not isinstance(config, dict):
        raise ConfigError("config", str(path), f"{accepted} ({file.name} is not a JSON object)")
    # A name for people: the folder's, as checkpoints call their files all alike.
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return shape_from_config(config, name, f"{path}; parameters counted from it")


def shape_from_config(
    config: Mapping[str, Any], name: str, source: str, aliases: tuple[str, ...] = ()
) -> ModelShape:
    """The shape that a config.json's fields describe. Raises ConfigError that names the field of `config`."""
    _check_family(config)
    hidden = _positive(config, "hidden_size")
    heads = _positive(config, "num_attention_heads")
    kv_heads = heads if _is_old_llama(config) else _positive(config, "num_key_value_heads")
    if heads % kv_heads:
        raise ConfigError("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads, which is {heads}")
    return ModelShape(
        name=name,
        num_parameters=count_parameters(config),
        num_layers=_positive(config, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(config, hidden, heads),
        vocab_size=_positive(config, "vocab_size"),
        max_model_len=_positive(config, "max_position_embeddings"),
        source=source,
        aliases=aliases,
    )


def count_parameters(config: Mapping[str, Any]) -> int:
    """Parameters of a model of one of the four families, by the table above; a tied embedding counts once."""
    _check_family(config)
    family = config["model_type"]
    hidden, inner = _positive(config, "hidden_size"), _positive(config, "intermediate_size")
    heads = _positive(config, "num_attention_heads")
    kv_heads = heads if _is_old_llama(config) else _positive(config, "num_key_value_heads")
    head_dim = _head_dim(config, hidden, heads)
    query, key_value = heads * head_dim, kv_heads * head_dim
    layer = 2 * hidden * query + 2 * hidden * key_value + 3 * hidden * inner + 2 * hidden
    has_attention_bias = family in ("llama", "qwen3") and bool(config.get("attention_bias"))
    if family == "qwen2" or has_attention_bias:
        layer += query + 2 * key_value
    if has_attention_bias:
        layer += hidden
    if family == "llama" and config.get("mlp_bias"):
        layer += 2 * inner + hidden
    if family == "qwen3":
        layer += 2 * head_dim
    num_embeddings = 1 if config.get("tie_word_embeddings", False) else 2
    return (
        _positive(config, "num_hidden_layers") * layer + num_embeddings * _positive(config, "vocab_size") * hidden + hidden
    )


def _check_family(config: Mapping[str, Any]) -> None:
    """Refuse what the count, or the laws of the cost, would be wrong for."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ConfigError("model_type", family, f"{', '.join(FAMILIES)}; no mixtures of experts, no other families")
    for field in _EXPERTS:
        if config.get(field):
            raise ConfigError(field, config[field], "none: a mixture of experts is not counted")
    window = config.get("sliding_window")
    is_used = config.get("use_sliding_window", family == "mistral")
    if is_used and isinstance(window, int) and window < _positive(config, "max_position_embeddings"):
        raise ConfigError("sliding_window", window, "null: the laws count attention to every earlier position")


def _is_old_llama(config: Mapping[str, Any]) -> bool:
    """The first llama configurations knew no key/value heads of their own: each query head had one."""
    return config["model_type"] == "llama" and config.get("num_key_value_heads") is None


def _head_dim(config: Mapping[str, Any], hidden: int, heads: int) -> int:
    if config.get("head_dim") is not None:
        return _positive(config, "head_dim")
    default = _DEFAULT_HEAD_DIM.get(config["model_type"])
    if default is None and hidden % heads:
        raise ConfigError("hidden_size", hidden, f"a multiple of num_attention_heads, which is {heads}, or head_dim beside it")
    return default if default is not None else hidden // heads


def _positive(config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_FIELD:
        raise ConfigError(field, value, f"a whole number from 1 to {MAX_FIELD:,}, in config.json")
    return value
