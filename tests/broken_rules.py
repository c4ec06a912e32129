"""Rules of the engine, broken on purpose: what tests put in place of the right ones to see that it is noticed."""

from __future__ import annotations

from engine.kvcache.block_hash import hash_block_tokens


def name_blocks_without_their_parents(self, block_hashes, token_ids, identity, exact_ints=False):
    """In place of `BlockHasher.extend`: equal blocks behind different pasts get one name."""
    size = self.block_size
    for start in range(len(block_hashes) * size, len(token_ids) // size * size, size):
        extra_keys = identity.extra_keys(start, start + size)
        block_hashes.append(hash_block_tokens(self.hash_function, b"", token_ids[start : start + size], extra_keys))
