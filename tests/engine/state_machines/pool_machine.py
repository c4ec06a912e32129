"""BlockPool against the plainest model of it: a list of free ids and a list of user counts."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.kvcache.block_pool import NULL_BLOCK_ID, BlockPool

PICKS = st.lists(st.integers(0, 99), max_size=6)  # indices into whatever there is to choose from


class PoolMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 9))
    def open(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.free = list(range(1, num_blocks))  # front first
        self.users = [0] * num_blocks

    def usable(self, picks: list[int], among: list[int]) -> list[int]:
        return list(dict.fromkeys(among[pick % len(among)] for pick in picks)) if among else []

    @rule(count=st.integers(0, 9))
    def take(self, count: int) -> None:
        if count > len(self.free):
            try:
                self.pool.take(count)
            except ValueError:
                return
            raise AssertionError("more blocks taken than are free")
        wanted, self.free = self.free[:count], self.free[count:]
        assert self.pool.take(count) == wanted
        for block_id in wanted:
            assert block_id != NULL_BLOCK_ID and self.users[block_id] == 0
            self.users[block_id] = 1

    @rule(picks=PICKS)
    def touch(self, picks: list[int]) -> None:
        block_ids = self.usable(picks, list(range(1, len(self.users))))
        assert self.pool.num_idle(block_ids) == sum(1 for block_id in block_ids if block_id in self.free)
        self.pool.touch(block_ids)
        for block_id in block_ids:
            self.users[block_id] += 1
            if block_id in self.free:
                self.free.remove(block_id)

    @precondition(lambda self: any(self.users))
    @rule(picks=PICKS, with_null=st.booleans(), content=st.sets(st.integers(1, 8)))
    def give_back(self, picks: list[int], with_null: bool, content: set[int]) -> None:
        block_ids = self.usable(picks, [block_id for block_id, users in enumerate(self.users) if users])
        empty = [block_id for block_id in block_ids if block_id not in content]
        kept = [block_id for block_id in block_ids if block_id in content]
        self.pool.free([NULL_BLOCK_ID, *empty] if with_null else empty, kept)
        for block_id in block_ids:
            self.users[block_id] -= 1
        unused = [block_id for block_id in block_ids if not self.users[block_id]]
        self.free = [b for b in unused if b in empty] + self.free + [b for b in unused if b in kept]

    @rule(pick=st.integers(0, 8))
    def take_one_out_of_the_middle_of_the_queue(self, pick: int) -> None:
        if pick in self.free:
            self.touch([pick - 1])
            return
        try:
            self.pool.free_queue.remove(pick)
        except RuntimeError:
            return
        raise AssertionError("a block left the queue that was not in it")

    @invariant()
    def both_agree(self) -> None:
        pool = self.pool
        assert pool.free_queue.all_ids() == self.free and pool.ref_counts == self.users
        assert NULL_BLOCK_ID not in pool.free_queue and len(set(self.free)) == len(self.free)
        assert [block_id in pool.free_queue for block_id in range(1, pool.num_blocks)] == [not n for n in self.users[1:]]
        assert pool.num_free + sum(1 for users in self.users if users) == pool.num_usable
