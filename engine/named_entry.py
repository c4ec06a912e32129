"""One entry of a table by the name a person types: the whole name, one of its aliases, or some of its words.

    "H100 SXM", "h100", "rtx4090"          a name or an alias, in any case
    "4090", "a100 40gb", "mistral"         words of one name alone
    "a100", "llama-3"                      refused: an alias of none, and words of several

Only whole words count. As a part of a word, "L40" would give the L40S and "A10" the A100, which are other cards.
"""

from __future__ import annotations

import re
from typing import Protocol, Sequence, TypeVar

from engine.errors import ConfigError


class NamedEntry(Protocol):
    """What a table holds."""

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...


Entry = TypeVar("Entry", bound=NamedEntry)


def find_named(field: str, name: str, table: Sequence[Entry]) -> Entry:
    """The entry called `name`. Raises ConfigError that lists the names it could be: those it fits, or all."""
    typed = name.strip().casefold()
    for entry in table:
        if typed in (known.casefold() for known in (entry.name, *entry.aliases)):
            return entry
    words = _words(typed)
    fitting = [entry for entry in table if words and words <= _words(entry.name.casefold())]
    if len(fitting) == 1:
        return fitting[0]
    raise ConfigError(field, name, ", ".join(entry.name for entry in fitting or table))


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9.]+", name))
