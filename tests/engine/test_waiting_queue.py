"""Who is admitted next: first come first served, or by priority."""

from __future__ import annotations

from engine.request import Request
from engine.waiting_queue import open_waiting_queue


def request(name: str, priority: int = 0, arrival: float = 0.0) -> Request:
    return Request(name, [1], priority=priority, arrival_time=arrival)


def names(queue) -> list[str]:
    return [item.request_id for item in queue]


def test_first_come_is_first_served_and_preempted_requests_go_in_front():
    queue = open_waiting_queue("fcfs")
    a, b, c = request("a"), request("b"), request("c")
    queue.add(a), queue.add(b)
    queue.prepend(c)
    assert names(queue) == ["c", "a", "b"] and queue.peek() is c
    queue.remove(a)
    assert [queue.pop(), queue.pop()] == [c, b] and len(queue) == 0


def test_the_smaller_priority_comes_first_then_the_earlier_arrival_even_for_preempted_requests():
    queue = open_waiting_queue("priority")
    late, early, urgent, preempted = request("late", 1, 5.0), request("early", 1, 2.0), request("urgent", 0, 9.0), request("back", 2)
    for item in (late, early, urgent):
        queue.add(item)
    queue.prepend(preempted)
    assert names(queue) == ["urgent", "early", "late", "back"]
    queue.remove(early)
    assert [queue.pop().request_id for _ in range(3)] == ["urgent", "late", "back"]
