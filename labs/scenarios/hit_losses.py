"""Hit losses: why a request finds fewer tokens than earlier requests offer it, told apart by kind.

    offered      tokens it has in common, from its first on, with any earlier prompt
    − twins      offered by requests of the same step, whose K/V cannot be found before the step is done
    − rounding   behind the last whole block or page of the match
    − last token the block or page of the prompt's last token, which is always computed
    − eviction   of what is left, given up to make room
    = hits

What is offered depends on the prompts alone, so two caches that were sent the same differ by their losses, kind by kind.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

KINDS = ("twins", "rounding", "last token", "eviction")


@dataclass(frozen=True)
class HitLosses:
    """Tokens of one request, or of several together."""

    offered: int = 0
    twins: int = 0
    rounding: int = 0
    last_token: int = 0
    eviction: int = 0

    @property
    def hits(self) -> int:
        return self.offered - sum(self.by_kind.values())

    @property
    def by_kind(self) -> dict[str, int]:
        return dict(zip(KINDS, astuple(self)[1:]))

    @property
    def text(self) -> str:
        """The sum with its numbers: "offered 2,025 − rounding 25 = 2,000"."""
        lost = "".join(f" − {kind} {tokens:,}" for kind, tokens in self.by_kind.items() if tokens)
        return f"offered {self.offered:,}{lost or ', nothing lost'} = {self.hits:,}"

    def __add__(self, other: HitLosses) -> HitLosses:
        return HitLosses(*map(sum, zip(astuple(self), astuple(other))))


def difference_text(first: HitLosses, second: HitLosses) -> str:
    """Hits of the first minus hits of the second, by kind: what the second loses and the first does not."""
    parts = {kind: tokens - first.by_kind[kind] for kind, tokens in second.by_kind.items()}
    shown = [f"{kind} {signed(tokens)}" for kind, tokens in parts.items() if tokens]
    return f"{', '.join(shown) or 'the same losses'} = {signed(first.hits - second.hits)}"


def signed(number: int) -> str:
    """"+1,024", "−25" or "0"."""
    return f"{number:+,}".replace("-", "−") if number else "0"
