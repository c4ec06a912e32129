"""DeadlineTransport: httpx's transport, in which a request ends in time however slowly bytes trickle in.

httpx limits each wait for bytes. A server that sends one now and then, or "102 Processing" again and again before its
headers, is never late by that; so here each wait also ends at the request's deadline.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import httpcore
import httpx


class Deadline(threading.local):
    """When the request of the calling thread must be over."""

    at_s = math.inf  # on the monotonic clock

    def renew(self, seconds: float) -> None:
        """So many seconds from now."""
        self.at_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Below zero when it is over."""
        return self.at_s - time.monotonic()


class DeadlineTransport(httpx.HTTPTransport):
    """Keeps `deadline`, which whoever sends a request sets before."""

    def __init__(self, deadline: Deadline, **settings: Any) -> None:
        super().__init__(**settings)
        pool = self._pool  # httpx hands no network to its pool: it is put around the one that is there
        pool._network_backend = _Network(pool._network_backend, deadline)


class _Network(httpcore.NetworkBackend):
    def __init__(self, inner: httpcore.NetworkBackend, deadline: Deadline) -> None:
        self._inner, self._deadline = inner, deadline

    def connect_tcp(self, *arguments: Any, **settings: Any) -> httpcore.NetworkStream:
        return _Stream(self._inner.connect_tcp(*arguments, **settings), self._deadline)

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._inner, self._deadline = inner, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        left_s = self._deadline.left_s
        if left_s <= 0:
            raise httpcore.ReadTimeout("the request's deadline has passed")
        return self._inner.read(max_bytes, left_s if timeout is None else min(timeout, left_s))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(self, *arguments: Any, **settings: Any) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(*arguments, **settings), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
