"""load_model: a name -> weights in a transformers model that computes attention over our paged K/V.

Steps: find the files (model_source), convert them once (model_cache), refuse what cannot be served exactly from the
config alone (model_support), load the weights straight into the dtype and device, check a few tokens' logits.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Callable

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError, ModelNotFound, ModelNotSupported
from engine.model.attention import register_attention
from engine.model.decoder import Decoder, has_decoder
from engine.model.linear import PackedLinear, linear_kind
from engine.model.logits_head import LogitsHead
from engine.model.machine import resolve_device, resolve_dtype
from engine.model.model_body import ModelBody, TransformersBody
from engine.model.model_cache import Progress, converted_folder
from engine.model.model_source import BYTE_EOS_TOKEN_ID, find_model
from engine.model.model_support import causal_class, check_config, check_forward, computes_alike
from engine.model.native_decoder import NativeDecoder, has_native_decoder
from engine.model.native_kernels import NativeKernels
from engine.model.quiet import quiet_transformers
from engine.model.tokenizer import ByteTokenizer, TextTokenizer, Tokenizer

logger = logging.getLogger(__name__)

UNLIMITED = 2**31  # tokens; longer than any window


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, with what the engine needs to know about it."""

    model: Any  # transformers' ...ForCausalLM in eval mode, with our attention
    tokenizer: TextTokenizer
    dtype: torch.dtype
    device: torch.device
    eos_token_ids: frozenset[int]
    num_layers: int
    num_heads: int  # query heads
    num_kv_heads: int
    head_dim: int
    vocab_size: int  # ids the embedding knows
    max_model_len: int  # tokens
    kernels: NativeKernels | None = None  # compiled for this machine; None: torch's own operations throughout

    @cached_property
    def body(self) -> ModelBody:
        """What computes hidden states, made when first asked for: our own decoder for the models it knows, with kernels
        where there are any, if it gives the logits of the model's own layers; else those layers."""
        shape = (self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim, self.device)
        for make in self._decoders():
            try:
                decoder = make()
                kernels = self.kernels if isinstance(decoder, NativeDecoder) else None
                if computes_alike(self.model, decoder, *shape, kernels=kernels):
                    return decoder
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # layers of another make: transformers' own run them
                logger.debug("not computed by our own decoder: %s", _first_line(error))
        logger.info("model type %s runs through transformers' layers", self.model.config.model_type)
        return TransformersBody(self.model)

    @property
    def hidden_size(self) -> int:
        """Numbers of a token's embedding."""
        return self.model.get_input_embeddings().weight.shape[1]

    @property
    def step_kernels(self) -> NativeKernels | None:
        """The kernels that steps are planned with: those of `body`, if it uses any."""
        return self.kernels if isinstance(self.body, NativeDecoder) else None

    def _decoders(self) -> list[Callable[[], Decoder]]:
        kernels, found = self.kernels, []
        if kernels is not None:
            found.append(lambda: NativeDecoder(self.model, self._linear_kind, kernels))
        if has_decoder(self.model):
            found.append(lambda: Decoder(self.model, self._linear_kind))
        return found

    @cached_property
    def head(self) -> LogitsHead:
        return LogitsHead(self.model, self._linear_kind)

    def drop_layers(self) -> None:
        """Free the weights of transformers' layers, if `body` has its own; `model` cannot run after that."""
        if isinstance(self.body, Decoder):
            for parameter in self.model.base_model.layers.parameters():
                if parameter.dim() > 1:
                    parameter.data = parameter.data.new_empty(0)
        head, embedding = self.model.get_output_embeddings().weight, self.model.get_input_embeddings().weight
        if isinstance(self.head.projection, PackedLinear) and head is not embedding:
            head.data = head.data.new_empty(0)

    @cached_property
    def _linear_kind(self) -> Any:
        return linear_kind(self.dtype, self.device, sum(weight.numel() for weight in self.model.parameters()))


def load_model(
    config: EngineConfig, cache_dir: Path | str | None = None, progress: Progress | None = None
) -> LoadedModel:
    """The model that `config` names, on its device and in its dtype.

    cache_dir  where a converted model is kept; None: the user's cache folder
    progress   (what, done, total), called while a model is converted for the first time

    Raises ModelNotFound, ModelNotSupported, and ConfigError for a device or a length that is not possible.
    """
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    source = find_model(config.model)
    folder = source.folder
    if source.gguf_path is not None:
        folder = converted_folder(source.gguf_path, cache_dir, progress)
    register_attention()
    tokenizer: TextTokenizer
    with quiet_transformers():
        if folder is None:
            model_config = _synthetic_config(source.shape)
            max_model_len = _max_model_len(config, model_config)
            model = _random_model(model_config, config.seed, dtype, device)
            tokenizer = ByteTokenizer(model_config.vocab_size)
        else:
            model_config = _read_config(folder)
            # Refusals first: a model of the wrong kind may name no length at all.
            check_config(model_config, config.max_model_len or _length_limit(model_config) or UNLIMITED)
            max_model_len = _max_model_len(config, model_config)
            tokenizer = Tokenizer.from_folder(folder)
            model = _read_weights(folder, model_config, dtype, device)
        model.eval().requires_grad_(False)
        num_heads = model_config.num_attention_heads
        shape = dict(
            num_layers=model_config.num_hidden_layers,
            num_heads=num_heads,
            num_kv_heads=getattr(model_config, "num_key_value_heads", None) or num_heads,
            head_dim=getattr(model_config, "head_dim", None) or model_config.hidden_size // num_heads,
        )
        _check_forward(model, shape, device)
        kernels = _kernels(config, model, dtype, device, cache_dir, progress)
    loaded = LoadedModel(
        model=model,
        tokenizer=tokenizer,
        dtype=dtype,
        device=device,
        eos_token_ids=_eos_token_ids(model),
        vocab_size=model.get_input_embeddings().weight.shape[0],
        max_model_len=max_model_len,
        kernels=kernels,
        **shape,
    )
    if config.compile and loaded.step_kernels is None:
        raise ConfigError("compile", True, "false: with compiled kernels this model gives other logits")
    return loaded


def _read_config(folder: Path) -> Any:
    from transformers import AutoConfig, __version__

    try:
        return AutoConfig.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # an unknown type, a broken file: transformers raises many kinds
        raise ModelNotSupported(
            f"transformers {__version__} cannot read the model config in {str(folder)!r}: {_first_line(error)}"
        ) from error


def _read_weights(folder: Path, model_config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    try:
        # The class is named, not looked up by the checkpoint: code that comes with a checkpoint never runs.
        return causal_class(model_config).from_pretrained(
            str(folder), config=model_config, dtype=dtype, device_map={"": device}, local_files_only=True
        )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ModelNotFound(f"no weights could be loaded from {str(folder)!r}: {_first_line(error)}") from error


def _check_forward(model: Any, shape: dict[str, int], device: torch.device) -> None:
    try:
        check_forward(model, device=device, **shape)
    except (EngineError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelNotSupported(
            f"model type {model.config.model_type!r} does not run with the paged attention: {_first_line(error)}"
        ) from error


def _kernels(
    config: EngineConfig, model: Any, dtype: torch.dtype, device: torch.device, cache_dir: Path | str | None, progress: Progress | None
) -> NativeKernels | None:
    """Compiled kernels, if they are asked for, or can be had when nobody said anything."""
    if config.compile is False:
        return None
    try:
        if device.type != "cpu":
            raise ConfigError("compile", True, "false, or true with device cpu: the kernels are for processors")
        if not has_native_decoder(model):
            raise ConfigError("compile", True, f"false: there are no kernels for model type {model.config.model_type!r}")
        return NativeKernels(dtype, cache_dir, progress)
    except ConfigError:
        if config.compile:
            raise
        return None


def _length_limit(model_config: Any) -> int | None:
    """Tokens the model was made for; None when its config does not say."""
    limit = getattr(model_config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) else None


def _max_model_len(config: EngineConfig, model_config: Any) -> int:
    limit = _length_limit(model_config)
    if config.max_model_len is None:
        if limit is None:
            raise ConfigError("max_model_len", None, "a number of tokens: this model's config names no limit")
        return limit
    if limit is not None and config.max_model_len > limit:
        raise ConfigError("max_model_len", config.max_model_len, f"at most {limit}, which this model was made for")
    return config.max_model_len


def _eos_token_ids(model: Any) -> frozenset[int]:
    """The ids that end a text: the generation config's, which chat models use to name several, else the config's."""
    for config in (getattr(model, "generation_config", None), model.config):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return frozenset(int(token_id) for token_id in (ids if isinstance(ids, (list, tuple)) else [ids]))
    return frozenset()


def _synthetic_config(shape: dict[str, Any]) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**shape, bos_token_id=None, eos_token_id=BYTE_EOS_TOKEN_ID)


def _random_model(model_config: Any, seed: int, dtype: torch.dtype, device: torch.device) -> Any:
    """A Llama with seeded random weights: the same for one seed, dtype and kind of device.

    Every layer contributes to the residual stream as much as the embedding does, and attention is peaked, so that
    a wrong or missing token of the context changes the output; the best logits lie far enough apart that
    rounding does not reorder them.
    """
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    with no_init_weights(), device:
        model = AutoModelForCausalLM.from_config(model_config, dtype=dtype)
    model.tie_weights()
    generator = torch.Generator(device).manual_seed(seed)
    # Tied, the embedding is the projection: it is scaled for the logits, and the first norm makes up for it.
    logit_std = 4.0 / math.sqrt(model_config.hidden_size)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.fill_(1.0)
                continue
            if "embed_tokens" in name:
                std = logit_std if model_config.tie_word_embeddings else 1.0
            elif "lm_head" in name:
                std = logit_std
            else:
                gain = 2.0 if "q_proj" in name or "k_proj" in name else 1.0
                std = gain / math.sqrt(weight.shape[1])
            weight.normal_(0.0, std, generator=generator)
    return model


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
