"""CacheReset: empties a server's prefix cache over HTTP, where the server has a way.

    vLLM    POST /reset_prefix_cache        only in its dev mode; the body says whether it did, releases before had none
    SGLang  POST /flush_cache?timeout=s     200 or 400; with a timeout it waits until no request runs

A reset is refused while a request holds blocks, which it may for a moment after its reply: it is asked again.
"""

from __future__ import annotations

import time
from typing import Any

from labs.servers.server_client import ServerClient
from labs.servers.server_facts import ServerFacts
from labs.targets.base import TargetError

WAIT_S = 3.0  # for requests to let go
PAUSE_S = 0.1


class CacheReset:
    """One server's way to forget.

    exists  False when the server is known to have none
    """

    def __init__(self, client: ServerClient, facts: ServerFacts) -> None:
        self._client = client
        self._is_vllm = facts.kind == "vllm"
        self.exists = facts.has_reset

    def __call__(self) -> bool:
        """Whether the server says that it emptied its cache. Waits a few seconds where it refuses; never raises TargetError."""
        deadline_s = time.monotonic() + WAIT_S
        while self.exists:
            done = self._ask()
            if done is not None:
                return done
            if time.monotonic() > deadline_s:
                return False
            time.sleep(PAUSE_S)
        return False

    def _ask(self) -> bool | None:
        """True: emptied; False: there is no way; None: refused for now."""
        path = "/reset_prefix_cache" if self._is_vllm else f"/flush_cache?timeout={WAIT_S:.0f}"
        try:
            reply = self._client.post(path, timeout_s=60.0)
        except TargetError:
            return None
        if reply.status_code in (401, 403, 404, 405):
            self.exists = False
            return False
        if reply.status_code != 200:
            return None
        return True if not self._is_vllm or _said(reply) else None


def _said(reply: Any) -> bool:
    """Success as vLLM's body says it; releases before the body had it answered 200 alone."""
    try:
        content = reply.json()
    except (ValueError, RecursionError):
        return not reply.content.strip()
    return not isinstance(content, dict) or content.get("success") is not False
