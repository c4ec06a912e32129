"""AtOnce: one prompt that was found before, sent several times at once on new connections.

One after the other they may all go to one replica, the idlest. At once they go to as many as there are, and those that do not
know the prompt miss it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from labs.probe.sent import UNKNOWN, Sent
from labs.servers.prefix_counters import CounterReading


@dataclass(frozen=True)
class AtOnce:
    """What was answered, and what the counters grew over all of it (unknown where replies tell)."""

    sent: tuple[Sent, ...]
    counted: CounterReading = UNKNOWN

    @property
    def num_abreast(self) -> int:
        """The most that were under way at one moment, as seen from here."""
        return max((_num_open(self.sent, one.at_s) for one in self.sent), default=0)

    @property
    def is_abreast(self) -> bool:
        """Whether several were answered, and all of them were under way at one moment."""
        return 1 < len(self.sent) == self.num_abreast

    def num_missed(self, usual: int, by_new: int) -> int | None:
        """How many found no more than a new prompt does; None where nothing tells.

        usual   tokens that a repeat of this prompt finds alone
        by_new  the most that a new prompt finds
        """
        if self.sent and all(one.cached is not None for one in self.sent):
            return sum(one.cached <= by_new for one in self.sent)
        lengths = [one.length for one in self.sent]
        if not usual or None in lengths or not lengths or self.counted.queries != sum(lengths):
            return None
        return len(lengths) - min(len(lengths), self.counted.hits // usual)


def _num_open(sent: Sequence[Sent], at_s: float) -> int:
    return sum(one.at_s <= at_s < one.at_s + one.seconds for one in sent)
