"""The waiting queue: first come first served, or by priority."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Iterator, Protocol

from engine.request import Request


class WaitingQueue(Protocol):
    """Requests in the order they will be admitted."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """In order of admission."""
        ...

    def add(self, request: Request) -> None:
        """Queue a new request."""
        ...

    def prepend(self, request: Request) -> None:
        """Queue a preempted request: in front, where the policy has a front."""
        ...

    def peek(self) -> Request:
        """The next request; the queue must not be empty."""
        ...

    def pop(self) -> Request:
        """Take the next request."""
        ...

    def remove(self, request: Request) -> None:
        """Take a request out of the middle."""
        ...

    def reorder(self, requests: list[Request]) -> None:
        """The same requests in another order of admission; a queue with an order of its own keeps it."""
        ...


class FcfsQueue:
    """First come, first served; a preempted request goes before all others."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def prepend(self, request: Request) -> None:
        self._requests.appendleft(request)

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.popleft()

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def reorder(self, requests: list[Request]) -> None:
        assert len(requests) == len(self._requests), "no request is lost and none is added"
        self._requests = deque(requests)


class PriorityQueue:
    """Smaller priority first, then earlier arrival, then request id."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, str], int, Request]] = []
        self._count = 0  # requests are not ordered: equal keys fall back to the order of queueing

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in sorted(self._heap, key=lambda entry: entry[:2]))

    def add(self, request: Request) -> None:
        self._count += 1
        heapq.heappush(self._heap, (request.scheduling_key, self._count, request))

    prepend = add

    def peek(self) -> Request:
        return self._heap[0][2]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[2]

    def remove(self, request: Request) -> None:
        self._heap = [entry for entry in self._heap if entry[2] is not request]
        heapq.heapify(self._heap)

    def reorder(self, requests: list[Request]) -> None:
        pass


def open_waiting_queue(policy: str) -> WaitingQueue:
    """The queue for a policy: by priority, or as they come (which cache-aware policies sort before each step)."""
    return PriorityQueue() if policy == "priority" else FcfsQueue()
