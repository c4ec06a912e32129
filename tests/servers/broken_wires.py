"""Acts on the wire: bytes that are missing, too many, too slow, or no HTTP at all."""

from __future__ import annotations

from tests.servers.broken_server import Answer, HungUp, Visit
from tests.servers.illness import Act

LORIS_GAP_S = 0.05  # between two bytes: shorter than any time limit for one, and far too long for a reply
LORIS_BYTES = 80  # so many, then it hangs up: who waits for each byte anew waits for all of them


def truncated(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head() + answer.content[: len(answer.content) // 2])
    raise HungUp


def short_body(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head(content_length=str(len(answer.content) + 100)) + answer.content)
    raise HungUp


def long_body(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head(content_length=str(len(answer.content) // 2)) + answer.content)
    visit.is_open = True  # the other half is taken for the next reply


def bad_length(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head(content_length="-7") + answer.content)


def chunked_garbage(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head(content_length=None, transfer_encoding="chunked") + b"5\r\nhello\r\nZZ\r\ngarbage")


def latin_headers(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head(x_name="Köln").decode().encode("latin-1") + answer.content)
    visit.is_open = True


def bad_cookie(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head(set_cookie="=;;; expires=never; domain=..; path") + answer.content)
    visit.is_open = True


def slow_body(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head())
    visit.dribble(answer.content[:LORIS_BYTES], LORIS_GAP_S)
    raise HungUp


def slow_head(visit: Visit) -> None:
    answer = visit.mind()
    visit.dribble(answer.head()[:LORIS_BYTES], LORIS_GAP_S)
    raise HungUp


def half_head(visit: Visit) -> None:
    visit.send(b"HTTP/1.1 200 OK\r\ncontent-ty")
    raise HungUp


def processing(visit: Visit) -> None:
    visit.send(b"HTTP/1.1 102 Processing\r\n\r\n" * 3)
    visit.pass_on()


def processing_for_ever(visit: Visit) -> None:
    visit.dribble(b"HTTP/1.1 102 Processing\r\n\r\n" * 1_000, LORIS_GAP_S / 10)


def comments_only(visit: Visit) -> None:
    visit.send(Answer(200, {"content-type": "text/event-stream"}, b"").head(content_length=None))
    visit.dribble(b": still working\n\n" * 1_000, LORIS_GAP_S / 10)


def hung_up(visit: Visit) -> None:
    raise HungUp


def without_http(text: bytes) -> Act:
    def act(visit: Visit) -> None:
        visit.listen()
        visit.send(text)

    return act


def dead(visit: Visit) -> None:
    visit.die()
    raise HungUp
