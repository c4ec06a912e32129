"""HashComparison: our naming of blocks beside a peer's own function, on the same blocks, in turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from labs.benches.hash_cost import HashCost, NamedChain
from labs.measure import Ratio, ratio_of_medians
from labs.peers.vllm_hashing import VllmHashing


@dataclass(frozen=True)
class HashComparison:
    """One algorithm: our cost, and the peer's seconds for the same chain, block after block."""

    cost: HashCost
    peer_s: tuple[float, ...]
    num_equal_names: int  # of the chain's blocks

    @property
    def peer_ns_per_block(self) -> float:
        return min(self.peer_s) / self.cost.num_blocks * 1e9

    @property
    def whole_ratio(self) -> Ratio:
        """How many times as fast a whole prompt is named here."""
        return ratio_of_medians(self.peer_s, self.cost.whole_s)

    @property
    def append_ratio(self) -> Ratio:
        """The same for blocks that are named one at a time here too."""
        return ratio_of_medians(self.peer_s, self.cost.append_s)

    @property
    def floor_ratio(self) -> Ratio:
        """How many times as fast naming would be if it were the digest alone."""
        return ratio_of_medians(self.peer_s, self.cost.digest_s)


class ComparedBench:
    """Chains timed in turns with the peer; who goes first changes from trial to trial."""

    def __init__(self, chains: Sequence[NamedChain], peer: VllmHashing) -> None:
        """Every chain has the same tokens. Raises PeerError when the peer cannot hash them."""
        self.chains, self.peer = tuple(chains), peer
        peer.load(chains[0].token_ids, chains[0].hasher.block_size)
        self._num_equal = [self._count_equal_names(chain) for chain in chains]
        self._samples: list[dict[str, list[float]]] = [{"whole": [], "append": [], "digest": [], "peer": []} for _ in chains]
        self._num_trials = 0
        self._trial(0, keep=False)  # first rounds bring code and data into the caches

    def run_trial(self) -> None:
        """One sample of each kind, of each chain."""
        self._trial(self._num_trials, keep=True)
        self._num_trials += 1

    @property
    def comparisons(self) -> list[HashComparison]:
        """What was measured so far; needs one trial at least."""
        return [
            HashComparison(chain.cost_of(samples), tuple(samples["peer"]), num_equal)
            for chain, samples, num_equal in zip(self.chains, self._samples, self._num_equal)
        ]

    def _trial(self, number: int, keep: bool) -> None:
        for chain, samples in zip(self.chains, self._samples):
            kinds = {
                "whole": chain.time_whole,
                "peer": lambda: self.peer.time(chain.hasher.algorithm, chain.none_hash_seed, chain.num_repeats),
                "append": chain.time_appends,
                "digest": chain.time_digest,
            }
            for kind in kinds if number % 2 == 0 else reversed(kinds):
                seconds = kinds[kind]()
                if keep:
                    samples[kind].append(seconds)

    def _count_equal_names(self, chain: NamedChain) -> int:
        theirs = self.peer.names(chain.hasher.algorithm, chain.none_hash_seed)
        assert len(theirs) == len(chain.names), "another number of blocks was named"
        return sum(name.hex() == other for name, other in zip(chain.names, theirs))
