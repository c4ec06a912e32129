"""BodyReader: parses bodies one at a time: quick ones at once, others on a thread, where they hold up nobody's stream.

One at a time, because a tokenizer is not made for several threads at once.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, TypeVar

_SHORT_BYTES = 8_192  # some 2,000 tokens, a millisecond or two; a hop to the thread and back costs a tenth of that
_FEW_PARTS = 64  # lists and quotes; a chat of 7 messages has about as many

Made = TypeVar("Made")


class BodyReader:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._num_on_thread = 0

    async def read(self, body: bytes, parse: Callable[[bytes], Made]) -> Made:
        """What `parse` makes of a body; it may raise anything."""
        if not self._num_on_thread and _is_quick(body):
            return parse(body)
        self._num_on_thread += 1
        reading = asyncio.get_running_loop().run_in_executor(self._thread, parse, body)
        reading.add_done_callback(self._is_read)
        return await asyncio.shield(reading)  # a client that goes away does not end the thread's work

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _is_read(self, _: object) -> None:
        self._num_on_thread -= 1


def _is_quick(body: bytes) -> bool:
    """Whether it is short, and asks for one request or few: each has a prompt of its own, and may take a millisecond.

    Many come of the field `n`, which may also be spelt with an escape, and of a list of prompts.
    """
    if len(body) > _SHORT_BYTES or b'"n"' in body or b"\\u00" in body:
        return False
    return body.count(b"[") + body.count(b'"') <= _FEW_PARTS
