"""A package that stands in for vLLM in tests of the worker's protocol: the two modules it imports, and SHA-256 only.

It names blocks by a few lines of the standard library, independent of ours.
"""

from __future__ import annotations

from pathlib import Path

_HASHING = '''
import hashlib, pickle

def get_hash_fn_by_name(name):
    if name != "sha256":
        raise ModuleNotFoundError("No module named " + repr(name))
    return lambda value: hashlib.sha256(pickle.dumps(value, protocol=5)).digest()
'''
_UTILS = '''
import os

print("the stub talks while it is imported")
NONE_HASH = None

def init_none_hash(hash_function):
    global NONE_HASH
    NONE_HASH = hash_function(os.environ["PYTHONHASHSEED"])

def hash_block_tokens(hash_function, parent, token_ids, extra_keys=None):
    if WRONG and token_ids[0] % 2:
        extra_keys = ()
    return hash_function((parent or NONE_HASH, tuple(token_ids), extra_keys))
'''


def write_stub_vllm(folder: Path, *, wrong: bool = False) -> Path:
    """Make the package in a folder, which then belongs on PYTHONPATH."""
    files = {
        "vllm/__init__.py": "__version__ = '0.0.stub'\n",
        "vllm/utils/__init__.py": "",
        "vllm/utils/hashing.py": _HASHING,
        "vllm/v1/__init__.py": "",
        "vllm/v1/core/__init__.py": "",
        "vllm/v1/core/kv_cache_utils.py": f"WRONG = {wrong}\n{_UTILS}",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
