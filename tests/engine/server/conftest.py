"""Servers that the tests of one file share: starting and ending one takes longer than most of what they are asked."""

from __future__ import annotations

from contextlib import ExitStack

import httpx
import pytest

from tests.engine.server.served import served


@pytest.fixture(scope="module")
def client_of():
    """A client of a server with these fields; each server is opened once. Tests ask it with prompts of their own."""
    with ExitStack() as stack:
        clients = {}

        def client(**fields):
            key = tuple(sorted(fields.items()))
            if key not in clients:
                url = stack.enter_context(served(**fields))
                clients[key] = stack.enter_context(httpx.Client(base_url=url, timeout=20))
            return clients[key]

        yield client
