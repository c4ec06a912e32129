"""BodyRoom: bytes of bodies that the server holds at once, so that many long bodies do not fill the memory.

The beginning of a body is free: short requests come through, whatever others send.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

from engine.server.requests.refusal import Refusal

_FREE_BYTES = 64 * 2**10  # of each body


class BodyRoom:
    """Used from one event loop.

    max_bytes  of all bodies that are being received, read or waiting for it, beyond the beginning of each
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_held = 0  # bytes

    @contextmanager
    def held(self) -> Iterator[BodyShare]:
        """The share of one body, given back at the end."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.num_held -= share.num_held


class BodyShare:
    """What one body holds."""

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self.num_held = 0  # bytes

    def grow(self, size: int) -> None:
        """The body has `size` bytes by now. Raises Refusal (503) when all together are too many."""
        more = max(0, size - _FREE_BYTES) - self.num_held
        if self._room.num_held + more > self._room.max_bytes:
            raise Refusal("the bodies of other requests fill the room for them; try again later", status=503, retry_after_s=1)
        self.num_held += more
        self._room.num_held += more
