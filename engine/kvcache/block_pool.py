"""BlockPool: block ids, reference counts, and the free blocks in the order they will be handed out.

    front                                             back
    ├─ unhashed, freed last … ─┤─ hashed, freed first … hashed, freed last ─┤
    handed out first                                 kept longest

A freed block without content goes to the front: nothing is lost when it is reused. One with cached content goes
to the back, so that the queue itself is the least-recently-freed order of eviction. Callers free a request's
table from its tail: within one request deeper blocks die before the heads that other prompts share.

The pool knows nothing of content: what a block holds is the prefix cache's business.

Source: vLLM 0.32.0, v1/core/block_pool.py and kv_cache_utils.py (FreeKVCacheBlockQueue).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Iterable, Sequence

NULL_BLOCK_ID = 0  # a placeholder: never handed out, never free


class FreeBlockQueue:
    """Free block ids, front first; every operation takes constant time per block.

    An OrderedDict is a linked list with an index: any block can be taken out of the middle, which is what a hit on
    a free block does.
    """

    def __init__(self, block_ids: Iterable[int] = ()) -> None:
        self._ids: OrderedDict[int, None] = OrderedDict.fromkeys(block_ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._ids

    def popleft(self) -> int:
        """Take the front block. Raises ValueError when there is none."""
        if not self._ids:
            raise ValueError("No free blocks available")
        return self._ids.popitem(last=False)[0]

    def popleft_n(self, count: int) -> list[int]:
        """Take `count` blocks from the front, in order. Raises ValueError when there are fewer."""
        if count > len(self._ids):
            raise ValueError("No free blocks available")
        pop = self._ids.popitem
        return [pop(last=False)[0] for _ in range(count)]

    def remove(self, block_id: int) -> None:
        """Take one block out of the middle. Raises RuntimeError when it is not free."""
        try:
            del self._ids[block_id]
        except KeyError:
            raise RuntimeError(f"block {block_id} is not in the free queue") from None

    def append(self, block_id: int) -> None:
        self._ids[block_id] = None

    def append_n(self, block_ids: Iterable[int]) -> None:
        """Put blocks at the back, in order."""
        ids = self._ids
        for block_id in block_ids:
            ids[block_id] = None

    def prepend_n(self, block_ids: Sequence[int]) -> None:
        """Put blocks at the front, the first of them frontmost."""
        for block_id in reversed(block_ids):
            self._ids[block_id] = None
            self._ids.move_to_end(block_id, last=False)

    def all_ids(self) -> list[int]:
        """All free blocks, front first."""
        return list(self._ids)


class BlockPool:
    """Hands out, shares and takes back block ids.

    num_blocks  blocks in all; block 0 is the null block, so `num_blocks - 1` are usable
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0, "a pool holds at least the null block"
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks  # users per block; the null block's is not maintained
        self.free_queue = FreeBlockQueue(range(1, num_blocks))

    @property
    def num_usable(self) -> int:
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        return len(self.free_queue)

    def take(self, count: int) -> list[int]:
        """`count` blocks from the front of the queue, with one user each.

        What they held until now is lost: the caller tells the cache. Raises ValueError when fewer are free.
        """
        if count > len(self.free_queue):
            raise ValueError(f"Cannot get {count} free blocks from the pool")
        block_ids = self.free_queue.popleft_n(count)
        ref_counts = self.ref_counts
        for block_id in block_ids:
            assert not ref_counts[block_id], "a free block has no users"
            ref_counts[block_id] = 1
        return block_ids

    def touch(self, block_ids: Iterable[int]) -> None:
        """Add one user to each block; a free one leaves the queue, so it cannot be handed out meanwhile."""
        ref_counts = self.ref_counts
        for block_id in block_ids:
            if ref_counts[block_id] == 0:
                self.free_queue.remove(block_id)
            ref_counts[block_id] += 1

    def free(self, empty: Iterable[int], with_content: Iterable[int] = ()) -> None:
        """Take one user off each block; those without users become free.

        empty         blocks whose content nobody can find, in the order to hand them out: tail first
        with_content  blocks whose content can still be found, in the order of eviction: tail first
        """
        self.free_queue.prepend_n(self._release(empty))
        self.free_queue.append_n(self._release(with_content))

    def _release(self, block_ids: Iterable[int]) -> list[int]:
        """Take one user off each block; those that have none left, in order."""
        ref_counts = self.ref_counts
        unused: list[int] = []
        for block_id in block_ids:
            if block_id == NULL_BLOCK_ID:
                continue
            num_users = ref_counts[block_id] = ref_counts[block_id] - 1
            if num_users <= 0:
                assert num_users == 0, "a block is freed once per user"
                unused.append(block_id)
        return unused

    def num_idle(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks are free: touching them takes them out of the queue."""
        ref_counts = self.ref_counts
        return sum(1 for block_id in block_ids if ref_counts[block_id] == 0)
