"""Which models the engine serves exactly; every other is refused, by name of the reason.

Two nets. `check_config` reads the configuration alone, before any weight is loaded. `check_forward` then runs a few
tokens twice, through the model's own attention and through the paged one, and compares the logits: whatever an
architecture does that no list foresaw (a bias, a shift over tokens, another scale) shows there.

Exact means: a token's K/V depend on the tokens before it and on nothing else, and stay where they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from engine.errors import ModelNotSupported
from engine.model.attention import ATTENTION_NAME, SdpaAttention
from engine.model.kv_tensors import KVTensors
from engine.model.logits_head import LogitsHead
from engine.model.model_body import ModelBody, TransformersBody
from engine.model.model_input import TokenSpan
from engine.model.native_kernels import NativeKernels

# RoPE variants whose frequencies change with the longest request in the batch: K written earlier would be wrong.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")

# Largest relative difference of one row's logits; half precision rounds differently in every kernel.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.15}


def check_config(config: Any, max_model_len: int) -> None:
    """Raises ModelNotSupported if this transformers config describes a model that cannot be served exactly.

    max_model_len  tokens of the longest request: a window that is never exceeded is no window
    """
    reason = _refusal(config, max_model_len)
    if reason is not None:
        raise ModelNotSupported(f"model type {config.model_type!r} cannot be served exactly: {reason}")


def _refusal(config: Any, max_model_len: int) -> str | None:
    if _get(config, "is_encoder_decoder"):
        return "encoder-decoder; accepted: decoder-only models"
    model_class = causal_class(config)
    if model_class is None:
        return "transformers has no causal language model of this type"
    if getattr(config, "sub_configs", None) and any(_get(config, name) is not None for name in config.sub_configs):
        return "it is made of several models (images, audio); accepted: text-only decoders"
    if getattr(model_class, "_is_stateful", False):
        return "recurrent state (state space or linear attention): a prefix is not a list of K/V blocks"
    return (
        _layer_refusal(config, max_model_len)
        or _attention_refusal(config, model_class)
        or _rope_refusal(config, max_model_len)
        or _causality_refusal(config, model_class)
    )


def _layer_refusal(config: Any, max_model_len: int) -> str | None:
    layer_types = _get(config, "layer_types") or ()
    others = sorted(set(layer_types) - {"full_attention", "sliding_attention"})
    if others:
        return f"hybrid layers ({', '.join(map(str, others))}); accepted: full attention in every layer"
    window = _get(config, "sliding_window")
    slides = "sliding_attention" in layer_types or (not layer_types and _get(config, "use_sliding_window") is not False)
    # With layer_types, the config says which layers slide; without it, every layer does.
    if slides and isinstance(window, int) and window < max_model_len:
        return f"sliding-window attention over {window} tokens; accepted with max_model_len of at most {window}"
    if slides and layer_types and not isinstance(window, int):
        return "sliding-window attention of unknown width"
    if any("local" in str(kind) for kind in _get(config, "attention_types") or ()):
        return "local attention layers; accepted: full attention in every layer"
    return None


def _causality_refusal(config: Any, model_class: Any) -> str | None:
    if _get(config, "is_causal") is False or _get(config, "use_bidirectional_attention"):
        return "its attention is not causal"
    if _get(config, "is_decoder") is False:
        # BERT's relatives run both ways unless this is set, GPT-NeoX is causal all the same: the layers know.
        with torch.device("meta"):
            layers = model_class(config)
        if any(getattr(module, "is_causal", True) is False for module in layers.modules()):
            return "its attention is not causal (is_decoder is false)"
    return None


def _attention_refusal(config: Any, model_class: Any) -> str | None:
    if _get(config, "attn_logit_softcapping"):
        return "attention logit soft-capping"
    if _get(config, "alibi") or _get(config, "model_type") == "bloom" or str(_get(config, "position_embedding_type") or "absolute") not in ("absolute", "rope"):
        return "positions enter attention as a bias (ALiBi or relative)"
    if _get(config, "kv_lora_rank"):
        return "multi-head latent attention: keys and values of different width"
    if _get(config, "model_type") == "gpt_oss" or _get(config, "add_swa_attention_sink_bias"):
        return "attention sinks"
    if not getattr(model_class, "_supports_attention_backend", False):
        return "its attention does not go through transformers' attention interface"
    return None


def _rope_refusal(config: Any, max_model_len: int) -> str | None:
    parameters = _get(config, "rope_parameters") or _get(config, "rope_scaling") or {}
    for rope in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        kind = rope.get("rope_type", rope.get("type"))
        limit = rope.get("original_max_position_embeddings") or _get(config, "max_position_embeddings") or 0
        if kind in LENGTH_DEPENDENT_ROPE and max_model_len > limit:
            return f"{kind} RoPE changes K with the length; accepted with max_model_len of at most {limit}"
    return None


def causal_class(config: Any) -> Any | None:
    """transformers' causal language model class for a config, None if it has none."""
    from transformers import AutoModelForCausalLM

    # Not `.get`: the mapping imports the class when it is indexed, and raises KeyError for other configs.
    try:
        return AutoModelForCausalLM._model_mapping[type(config)]
    except KeyError:
        return None


def _get(config: Any, name: str) -> Any:
    # Configs with per-layer values raise their own error for the ones that differ between layers.
    try:
        return getattr(config, name, None)
    except Exception:
        return None


@torch.inference_mode()
def check_forward(
    model: Any, num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int, device: torch.device
) -> None:
    """Switches `model` to the paged attention, and compares it with the attention it came with.

    Raises ModelNotSupported when a forward misses a layer's attention, or when its logits differ.
    """
    ids = _check_ids(model, device)
    expected = model(input_ids=ids[None], use_cache=False).logits[0].float()
    model.set_attn_implementation(ATTENTION_NAME)
    got = _paged_logits(model, TransformersBody(model), num_layers, num_heads, num_kv_heads, head_dim, device)
    error = _relative_error(got, torch.cat((expected, expected[:2], expected[2:3])))
    if not error <= TOLERANCE[model.dtype]:
        raise ModelNotSupported(
            f"model type {model.config.model_type!r}: its logits over the paged cache differ from its own "
            f"(relative error {error:.1e}); it computes something that the engine does not"
        )


@torch.inference_mode()
def computes_alike(
    model: Any,
    body: ModelBody,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    device: torch.device,
    kernels: NativeKernels | None = None,
) -> bool:
    """Whether `body` gives the logits that the layers of `model` give, both over the paged cache."""
    shape = (num_layers, num_heads, num_kv_heads, head_dim, device)
    expected = _paged_logits(model, TransformersBody(model), *shape)
    return _relative_error(_paged_logits(model, body, *shape, kernels), expected) <= TOLERANCE[model.dtype]


def _check_ids(model: Any, device: torch.device) -> torch.Tensor:
    return torch.arange(5, device=device) * 7 % model.config.vocab_size


def _relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest of any row, [n, at least vocab_size] each."""
    wanted = wanted[:, : got.shape[1]]
    return ((got - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max().item()


def _paged_logits(
    model: Any,
    body: ModelBody,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    device: torch.device,
    kernels: NativeKernels | None = None,
) -> torch.Tensor:
    """Logits of positions 0 to 4, of 0 and 1 as another request's, and of its 2, alone; [8, vocab_size] float32."""
    ids = _check_ids(model, device)
    kv = KVTensors(num_layers, 9, 1, num_kv_heads, head_dim, model.dtype, device)
    head = LogitsHead(model)

    def run(rows: list[int], slots: list[int], spans: list[TokenSpan], read: list[int] | None = None) -> torch.Tensor:
        positions = torch.tensor(rows, device=device)
        step = SdpaAttention(kv, np.array(slots), spans, num_heads, num_kv_heads, kernels)
        hidden = body(ids[positions], positions, step, None if read is None else torch.tensor(read, device=device))
        if sorted(step.layers_seen) != list(range(num_layers)):
            raise ModelNotSupported(
                f"one forward called the attention interface {len(step.layers_seen)} times, "
                f"not once in each of {num_layers} layers"
            )
        return head(hidden)

    # Slots out of order, a chunk behind a prefill, and beside it a second request with the same first tokens.
    first = run([0, 1, 2], [4, 2, 6], [TokenSpan(0, 3, 0, np.array([4, 2, 6]))])
    then = run(
        [3, 4, 0, 1],
        [1, 8, 5, 3],
        [TokenSpan(0, 2, 3, np.array([4, 2, 6, 1, 8])), TokenSpan(2, 2, 0, np.array([5, 3]))],
    )
    # Single tokens behind both, as they decode; only the second is read.
    last = run(
        [4, 2],
        [8, 7],
        [TokenSpan(0, 1, 4, np.array([4, 2, 6, 1, 8])), TokenSpan(1, 1, 2, np.array([5, 3, 7]))],
        [1],
    )
    return torch.cat((first, then, last))
