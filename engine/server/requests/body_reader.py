"""BodyReader: parses bodies one at a time: short ones at once, long ones on a thread, where they hold up nobody's stream.

One at a time, because a tokenizer is not made for several threads at once.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, TypeVar

_SHORT_BYTES = 8_192  # some 2,000 tokens, a millisecond or two; a hop to the thread and back costs a tenth of that

Made = TypeVar("Made")


class BodyReader:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._num_on_thread = 0

    async def read(self, body: bytes, parse: Callable[[bytes], Made]) -> Made:
        """What `parse` makes of a body; it may raise anything."""
        if len(body) <= _SHORT_BYTES and not self._num_on_thread:
            return parse(body)
        self._num_on_thread += 1
        reading = asyncio.get_running_loop().run_in_executor(self._thread, parse, body)
        reading.add_done_callback(self._is_read)
        return await asyncio.shield(reading)  # a client that goes away does not end the thread's work

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _is_read(self, _: object) -> None:
        self._num_on_thread -= 1
