"""Clients that connect and do not say what they want, on a raw socket: their connection is closed, nobody else's is."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

import pytest

from tests.engine.server.served import serving

TIMEOUT_S = 0.4
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\n"


@pytest.fixture(scope="module")
def server():
    # So slow that 500 tokens take longer than headers may.
    with serving(headers_timeout_s=TIMEOUT_S, pace=10.0) as running:
        yield running


@pytest.fixture(scope="module")
def keyed():
    with serving(headers_timeout_s=TIMEOUT_S, api_key="k") as running:
        yield running


@pytest.fixture
def connection(server):
    with socket.create_connection(("127.0.0.1", server.options.port), timeout=15) as connection:
        yield connection


@pytest.fixture
def keyed_connection(keyed):
    with socket.create_connection(("127.0.0.1", keyed.options.port), timeout=15) as connection:
        yield connection


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the server closes; a timeout of the socket fails the test."""
    found = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(65_536):
            found += data
    return found


def reply(connection: socket.socket) -> bytes:
    """One reply without a body: its head."""
    found = b""
    while not found.endswith(b"\r\n\r\n"):
        data = connection.recv(1)
        assert data, found
        found += data
    return found


def test_one_that_says_nothing_is_closed_without_a_word(connection):
    assert until_closed(connection) == b""


@pytest.mark.parametrize("begun", [b"G", b"GET /health HTTP/1.1\r\n", HEALTH[:-2]])
def test_one_that_stops_in_its_headers_gets_408(connection, begun):
    connection.sendall(begun)
    assert until_closed(connection).startswith(TOO_SLOW)


def test_one_that_sends_a_byte_now_and_then_has_no_more_time(connection):
    connection.sendall(b"GET /health HTTP/1.1\r\nX-Slow: ")
    connection.settimeout(0.05)
    found, end_s = b"", time.monotonic() + 15
    while not found and time.monotonic() < end_s:
        with suppress(TimeoutError):
            found = connection.recv(100)
        with suppress(OSError):
            connection.sendall(b"a")
    assert found.startswith(TOO_SLOW)


def test_one_that_was_served_has_no_more_time_for_its_next_headers(connection):
    connection.sendall(HEALTH)
    assert reply(connection).startswith(b"HTTP/1.1 200")
    connection.sendall(HEALTH[:10])
    assert until_closed(connection).startswith(TOO_SLOW)


def test_one_that_still_owes_the_body_of_an_answered_request_is_closed(connection):
    connection.sendall(HEALTH[:-2] + b"Content-Length: 100\r\n\r\n")
    assert reply(connection).startswith(b"HTTP/1.1 200")
    connection.sendall(b"a")
    assert until_closed(connection).startswith(TOO_SLOW)


POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_one_that_is_idle_after_an_early_refusal_is_closed_without_a_word(keyed_connection):
    keyed_connection.sendall(POST + b"Content-Length: 10\r\n\r\n")
    assert reply(keyed_connection).startswith(b"HTTP/1.1 401")
    keyed_connection.sendall(b"0123456789")
    assert until_closed(keyed_connection) == b'{"error":"Unauthorized"}'


def test_one_that_sends_no_chunk_after_an_early_refusal_is_closed_without_a_traceback(keyed_connection, caplog):
    keyed_connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
    assert reply(keyed_connection).startswith(b"HTTP/1.1 401")
    keyed_connection.sendall(b"ZZ\r\n")
    assert until_closed(keyed_connection) == b'{"error":"Unauthorized"}'
    assert not [record for record in caplog.records if record.exc_info]


def test_one_that_is_idle_between_requests_is_let_be_and_so_is_one_whose_reply_takes_long(server, connection):
    connection.sendall(HEALTH[:20])
    connection.sendall(HEALTH[20:])
    assert reply(connection).startswith(b"HTTP/1.1 200")
    time.sleep(2 * TIMEOUT_S)
    body = b'{"prompt": [1, 2, 3], "max_tokens": 500, "ignore_eos": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    found = until_closed(connection)
    assert found.startswith(b"HTTP/1.1 200") and b'"completion_tokens":500' in found


def test_a_crowd_that_says_nothing_leaves(server):
    crowd = [socket.create_connection(("127.0.0.1", server.options.port), timeout=15) for _ in range(50)]
    for number, connection in enumerate(crowd):
        if number % 2:
            connection.sendall(b"POST /v1/completions HT")
    for connection in crowd:
        until_closed(connection)
        connection.close()
    assert not [one for one in server.server.server_state.connections if not one.transport.is_closing()]
