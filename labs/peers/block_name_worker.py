"""BlockNameWorker: another Python process that names the blocks of a prompt, and how it is asked.

It is to this process what a second engine, a router or an outer store of K/V is to an engine: it gets the token ids,
has an environment of its own, and nothing else in common.

    this process ── JSON on stdin: token ids, sizes, algorithms ──▶ worker
                 ◀── JSON on stdout: names, hexadecimal ───────────
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Mapping, Sequence

from engine.kvcache.block_hash import BlockHash, BlockHasher
from engine.kvcache.cache_identity import CacheIdentity, MultimodalItem
from engine.kvcache.page_hash import hash_pages
from labs.targets.base import TargetError

TIMEOUT_S = 60
COMMAND = (sys.executable, "-m", "labs.peers.block_name_worker")
# What a Python needs to start; all else of this process's environment stays here.
_KEPT_VARIABLES = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH")
_IMAGE = "image-of-a-cat"  # an image's content hash, as far as names are concerned


@dataclass(frozen=True)
class NamingTask:
    """What is to be named."""

    token_ids: Sequence[int] = field(repr=False)
    block_size: int  # tokens, at least 2
    page_size: int
    algorithms: Sequence[str]
    image_offset: int  # token position of an image of one token; the same image follows it at once


@dataclass(frozen=True)
class BlockNames:
    """One process's names, hexadecimal, in the order of the blocks; by algorithm where there are several."""

    blocks: Mapping[str, list[str]]
    pages: list[str]  # SGLang's names of full pages
    one_object: Mapping[str, list[str]]  # of the prompt with its image twice, both times the same Python object
    two_objects: Mapping[str, list[str]]  # the same with two equal objects


def name_blocks(task: NamingTask) -> BlockNames:
    """The names as this process makes them: PYTHONHASHSEED is read from its environment."""
    blocks, one_object, two_objects = {}, {}, {}
    twin = "".join(list(_IMAGE))
    assert twin == _IMAGE and twin is not _IMAGE, "two equal texts, each an object of its own"
    for algorithm in task.algorithms:
        hasher = BlockHasher(algorithm, task.block_size)
        blocks[algorithm] = _named(hasher, task, ())
        one_object[algorithm] = _named(hasher, task, (_IMAGE, _IMAGE))
        two_objects[algorithm] = _named(hasher, task, (_IMAGE, twin))
    num_pages = len(task.token_ids) // task.page_size
    pages = [name.hex() for name in hash_pages(task.token_ids[: num_pages * task.page_size], task.page_size)]
    return BlockNames(blocks, pages, one_object, two_objects)


def ask_workers(task: NamingTask, hash_seeds: Sequence[str | None]) -> list[BlockNames]:
    """Names of one new process for each of `hash_seeds`, its PYTHONHASHSEED (None: unset); all run at once.

    Raises TargetError when one fails or takes longer than TIMEOUT_S.
    """
    question = json.dumps(asdict(task))
    workers: list[subprocess.Popen[str]] = []
    try:
        for hash_seed in hash_seeds:
            workers.append(_start(hash_seed))
        return [_answer(worker, question) for worker in workers]
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()


def main() -> None:
    """The worker's side: a NamingTask on stdin, BlockNames on stdout."""
    json.dump(asdict(name_blocks(NamingTask(**json.load(sys.stdin)))), sys.stdout)


def _named(hasher: BlockHasher, task: NamingTask, identifiers: Sequence[str]) -> list[str]:
    items = tuple(MultimodalItem(text, task.image_offset + index, 1) for index, text in enumerate(identifiers))
    names: list[BlockHash] = []
    hasher.extend(names, task.token_ids, CacheIdentity(mm_items=items))
    return [name.hex() for name in names]


def _start(hash_seed: str | None) -> subprocess.Popen[str]:
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join([root, *(entry for entry in sys.path if entry)])
    if hash_seed is not None:
        environment["PYTHONHASHSEED"] = hash_seed
    pipe = subprocess.PIPE
    return subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, text=True)


def _answer(worker: subprocess.Popen[str], question: str) -> BlockNames:
    try:
        answer, complaint = worker.communicate(question, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise TargetError(f"a process that names blocks did not answer within {TIMEOUT_S} s") from None
    if worker.returncode:
        last = (complaint.strip().splitlines() or ["no message"])[-1]
        raise TargetError(f"a process that names blocks failed: {last}")
    return BlockNames(**json.loads(answer))


if __name__ == "__main__":
    main()
