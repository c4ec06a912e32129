"""The once-only conversion of a .gguf file into a folder that loads in a second.

Reading a GGUF file takes tens of seconds (its vocabulary is parsed in Python, its weights are unpacked), reading
safetensors takes one. The result is kept in a per-user cache folder:

    <cache_dir>/models/<file name>-<file size>-v<format>/
        model.safetensors, config.json, tokenizer.json, …
        manifest.json       names and sizes of the others, written last

The folder is written beside its final place and renamed into it when it is complete. A folder without a manifest,
or whose files do not have the sizes in it, is never used: it is made again. Two processes that convert at the same
time each make their own; the second to finish drops its copy.

Weights are stored as float32: unpacked 4-bit weights fill more bits than bfloat16 has, and a cache that rounds them
would make every later float32 run compare against the wrong model. Loading converts to the dtype asked for.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Iterator

from engine.errors import ConfigError
from engine.model.quiet import quiet_transformers

# (what is being done, how much of it is done, how much there is to do)
Progress = Callable[[str, int, int], None]

FORMAT = 1
MANIFEST = "manifest.json"
# A conversion that was killed leaves its folder behind; one this old is no longer being written.
ABANDONED_AFTER_S = 3600


def converted_folder(gguf_path: Path, cache_dir: Path | str | None = None, progress: Progress | None = None) -> Path:
    """The folder of the converted model; converts first where there is none.

    cache_dir  None: the user's cache folder for labcli
    progress   called from start to end of a conversion, and not at all when there is nothing to convert
    Raises ConfigError when the cache folder cannot be written.
    """
    root = default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser()
    folder = root / "models" / f"{gguf_path.stem}-{gguf_path.stat().st_size}-v{FORMAT}"
    if is_complete(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        staging = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    except OSError as error:
        raise ConfigError("cache_dir", str(root), f"a folder that can be written ({error.strerror})") from error
    try:
        _convert(gguf_path, staging, progress or (lambda what, done, total: None))
        _write_manifest(staging)
        _move_into_place(staging, folder)
    except OSError as error:
        raise ConfigError("cache_dir", str(root), f"a folder with room for the model ({error})") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def default_cache_dir() -> Path:
    """The per-user cache folder; nothing is created."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("labcli"))


def is_complete(folder: Path) -> bool:
    """Whether every file that the manifest names is there with its size."""
    try:
        sizes = json.loads((folder / MANIFEST).read_text())["files"]
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _write_manifest(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": sizes}, indent=1))


def _move_into_place(staging: Path, folder: Path) -> None:
    try:
        os.rename(staging, folder)
        return
    except OSError:
        # A folder that is not empty is in the way: another process was faster, or what is there is damaged.
        if is_complete(folder):
            return
    damaged = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    try:
        os.rename(folder, damaged / "damaged")
        os.rename(staging, folder)
    except OSError:
        if not is_complete(folder):
            raise
    finally:
        shutil.rmtree(damaged, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    for path in folder.parent.glob(f"{folder.name}.tmp-*"):
        try:
            if time.time() - path.stat().st_mtime > ABANDONED_AFTER_S:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # another process removed it


def _convert(gguf_path: Path, folder: Path, progress: Progress) -> None:
    """Write the model and the tokenizer of a .gguf file into an existing folder, as transformers saves them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source: dict[str, Any] = dict(gguf_file=gguf_path.name, local_files_only=True)
    with quiet_transformers(), _file_parsed_once():
        progress("reading the tokenizer", 0, 1)
        tokenizer = AutoTokenizer.from_pretrained(str(gguf_path.parent), **source)
        progress("reading the tokenizer", 1, 1)
        # The file is parsed before its tensors are unpacked; the bar moves again with the first of them.
        progress("reading the model file", 0, 1)
        with _tensor_progress(lambda done, total: progress("unpacking the weights", done, total)):
            model = AutoModelForCausalLM.from_pretrained(
                str(gguf_path.parent), dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **source
            )
        progress("writing the converted model", 0, 1)
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))
        progress("writing the converted model", 1, 1)


@contextmanager
def _file_parsed_once() -> Iterator[None]:
    """transformers parses the file for the tokenizer, the config and the weights: the parsed file is shared, 9 s less."""
    import gguf

    original = gguf.GGUFReader
    gguf.GGUFReader = lru_cache(maxsize=1)(original)
    try:
        yield
    finally:
        gguf.GGUFReader = original


@contextmanager
def _tensor_progress(report: Callable[[int, int], None]) -> Iterator[None]:
    """Reports (tensors done, tensors in the file) while transformers unpacks a GGUF file.

    The loop over tensors offers no callback, only a progress bar: the bar's class is replaced by one that reports
    and prints nothing. Where transformers has no such bar, nothing is reported and nothing breaks.
    """
    import transformers.modeling_gguf_pytorch_utils as gguf_loader

    def reporting(tensors: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        total = len(tensors)
        for done, tensor in enumerate(tensors):
            report(done, total)
            yield tensor
        report(total, total)

    original = getattr(gguf_loader, "tqdm", None)
    if original is not None:
        gguf_loader.tqdm = reporting
    try:
        yield
    finally:
        if original is not None:
            gguf_loader.tqdm = original
