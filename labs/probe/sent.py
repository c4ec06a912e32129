"""Sent: one request of the probe, why it was sent, and what each witness says of it.

    usage           the reply itself
    counted         what the server's counters grew over it
    native_cached   SGLang's own /generate
    seconds         the time it took

None is unknown, never zero. Prompts are numbered: equal numbers are equal prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from labs.servers.prefix_counters import CounterReading
from labs.servers.server_reply import Usage

UNKNOWN = CounterReading(None, None)

# Why a request was sent.
LADDER = "ladder"  # repeats of ever longer prompts, until one finds something
STAIRCASE = "staircase"  # repeats of lengths that tell the unit
OWN = "own"  # repeats of a prompt as long as the person's own
BURST = "burst"  # one prompt again and again, on new connections, with nothing in between
LATE = "late"  # a repeat after a pause
SHARED = "shared"  # the front of a known prompt, then another tail
SALTED = "salted"
SALTED_CHAT = "salted chat"  # a chat message without a salt, with one, and without one again
TEXT = "text"
CHAT = "chat"
KEPT = "kept"  # as old as the first text and chat: whether such an old prompt is still there
TIMING = "timing"
POOL = "pool"
TOGETHER = "together"  # one prompt that is known by now, several times at once on new connections

OF_REPEATS = (LADDER, STAIRCASE, OWN, BURST, KEPT, TIMING)  # each a prompt that is sent again exactly as it was

# The salt a request carried.
NO_SALT, OWN_SALT, OTHER_SALT = "none", "own", "other"


@dataclass(frozen=True)
class Sent:
    """One request and what each witness says of it."""

    purpose: str
    prompt: int
    turn: int  # how often this prompt was sent before
    num_ids: int | None  # tokens sent; None where the server alone counts them
    usage: Usage = Usage()
    counted: CounterReading = UNKNOWN  # growth of the server's counters over this request
    native_cached: int | None = None  # by SGLang's own /generate
    seconds: float = 0.0
    at_s: float = 0.0  # since the probe began
    matched: int | None = None  # tokens of its front that were sent before; None: all of a repeat, none of a new prompt
    salt: str = NO_SALT
    prompt_ids: tuple[int, ...] | None = field(default=None, repr=False)  # as the server saw it
    reply_id: str | None = field(default=None, repr=False)  # the reply's own name; every reply of an engine has another

    @property
    def length(self) -> int | None:
        """Tokens of the prompt, as the server counts them where it does."""
        return self.usage.prompt_tokens or self.num_ids

    @property
    def is_counted(self) -> bool:
        """Whether the counters grew by this request alone."""
        return self.counted.is_known and self.counted.queries == self.length

    @property
    def cached(self) -> int | None:
        """Tokens found, by the best witness that speaks."""
        if self.usage.cached_tokens is not None and not self.usage.is_impossible:
            return self.usage.cached_tokens
        if self.native_cached is not None:
            return self.native_cached
        return self.counted.hits if self.is_counted else None

    @property
    def match(self) -> int | None:
        """Tokens that a cache which keeps everything would match."""
        if self.matched is not None:
            return self.matched
        return self.length if self.turn else 0
