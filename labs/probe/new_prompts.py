"""NewPrompts: what prompts found that nobody had sent before. It should be nothing, and rarely is.

    a few tokens          chance: where pages are single tokens, two prompts may begin alike
    the same for all      something stands in front of every prompt, and is found each time
    nearly all of them    hits that cannot be: no report of this server is believed
"""

from __future__ import annotations

from dataclasses import dataclass

from labs.probe.sent import Sent

CHANCE_TOKENS = 8  # that a prompt may share with somebody's by chance


@dataclass(frozen=True)
class NewPrompts:
    """Requests with new prompts, and the unit of a hit (None: unknown)."""

    sent: tuple[Sent, ...]
    unit: int | None

    @property
    def are_found(self) -> bool:
        """Whether prompts that nobody sent before are reported as found: then no report of hits can be believed."""
        return len(self.strangers) > 1

    @property
    def strangers(self) -> list[Sent]:
        """Those of which more was found than stands in front of all, or than chance explains."""
        front = self._front
        # Where no front shows, a text's may still have one, found only now and then: nearly whole is strange.
        return [
            one
            for one in self.sent
            if one.cached is not None and one.cached > (front if one.num_ids or front else (one.length or 0) // 2)
        ]

    @property
    def most_found(self) -> int:
        """The most tokens that one found, or may by chance; 0 where they are found whole: no report is believed."""
        strange = self.strangers
        if len(strange) > 1:
            return 0
        found = max((one.cached or 0 for one in self.sent if one not in strange), default=0)
        return found + (CHANCE_TOKENS if (self.unit or 1) <= CHANCE_TOKENS else 0)

    @property
    def standing_front(self) -> int:
        """Tokens that texts of different lengths all find; 0 for none, or where what is found grows with the length."""
        found = [(one.length, one.cached) for one in self.sent if one.length and one.cached and not one.num_ids]
        if len(found) < 2:
            return 0
        lengths, cached = zip(*found)
        spread, slack = max(cached) - min(cached), (self.unit or 1) + CHANCE_TOKENS
        return max(cached) if spread <= slack < max(lengths) - min(lengths) and max(cached) > CHANCE_TOKENS else 0

    @property
    def _front(self) -> int:
        """The most tokens that any prompt may find without having been sent before: a front that all share, and chance.

        Exact prompts tell their front by what the server counts more than was sent. Of texts it shows in what new ones find:
        about the same, however long they are. 0 where a text's front cannot be told.
        """
        exact = [(one.length or 0) - one.num_ids for one in self.sent if one.num_ids]
        if exact:
            return CHANCE_TOKENS + max(exact)
        return CHANCE_TOKENS + self.standing_front if self.standing_front else 0
