"""A Runner that keeps, per slot, what its K/V depends on, and checks every context it is asked to read.

K/V of a position depend on the identity and on all tokens up to it. The runner stores a digest of exactly that when it
computes a token, and before anything is sampled compares the digest of *every* context position with what the request
needs there: a cache that shares a block it must not, or hands out one in use, fails at once.
"""

from __future__ import annotations

import hashlib

from engine.request import Request
from engine.runner import RunnerOutput
from engine.scheduler import SchedulerOutput


class ContentRunner:
    vocab_size = 64
    max_model_len = 512
    eos_token_ids: frozenset[int] = frozenset()
    is_simulated = True

    def __init__(self) -> None:
        self.content: dict[int, bytes] = {}
        self.unit_size = 0
        self.time = 0.0

    def bytes_per_token(self) -> int:
        return 1

    def allocate_kv(self, num_blocks: int, unit_size: int) -> None:
        self.unit_size = unit_size

    def now(self) -> float:
        self.time += 1.0  # no two readings are equal, as the radix cache's order wants
        return self.time

    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        assert all(item.num_tokens > 0 for item in output.scheduled), "the last token's logits need it computed"
        wanted = [self._digests(item.request, item.end) for item in output.scheduled]
        # All of the step's K/V are written before any is read, as in a layer of the real model.
        for item, digests in zip(output.scheduled, wanted):
            for position in range(item.start, item.end):
                self.content[self._slot(item.block_table, position)] = digests[position]
        for item, digests in zip(output.scheduled, wanted):
            for position in range(item.end):
                found = self.content.get(self._slot(item.block_table, position))
                assert found == digests[position], f"{item.request} reads wrong K/V at position {position}"
        sampled = [self._sample(digests[-1]) if item.samples else None for item, digests in zip(output.scheduled, wanted)]
        return RunnerOutput(sampled, [None] * len(sampled))

    def _slot(self, block_table: list[int], position: int) -> int:
        block_id = block_table[position // self.unit_size]
        assert block_id != 0, "the null block holds nothing"
        return block_id * self.unit_size + position % self.unit_size

    def _digests(self, request: Request, num_tokens: int) -> list[bytes]:
        digest = hashlib.blake2b(repr((request.identity.cache_salt, request.identity.lora)).encode(), digest_size=8)
        digests = []
        for token_id in request.all_token_ids[:num_tokens]:
            digest.update(bytes([token_id]))
            digests.append(digest.digest())
        return digests

    def _sample(self, digest: bytes) -> int:
        return digest[0] % self.vocab_size
