"""A completion of one token, sent for its counts: how many tokens a prompt is, and which, as the server tells it."""

from __future__ import annotations

from typing import Any

from labs.servers.server_client import ServerClient, ServerRefused
from labs.servers.server_facts import MAX_SHOWN, ServerFacts
from labs.servers.server_reply import ServerReply
from labs.targets.base import TargetUnavailable

COMPLETIONS = "/v1/completions"


def count_request(
    client: ServerClient, facts: ServerFacts, prompt: list[int] | str, may_refuse: bool = True, **fields: Any
) -> ServerReply | None:
    """A completion of one token, for its counts; None when the server does not take such a prompt, and may refuse it.

    Raises TargetUnavailable when there is no completions endpoint, TargetError when the server fails otherwise.
    """
    body = {"model": facts.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    for extra in ({**fields}, {}) if fields else ({},):
        try:
            return ServerReply.of_json(client.compute(COMPLETIONS, {**body, **extra}), 0.0, client.shown)
        except ServerRefused as error:
            if error.status == 404 and facts.num_models > 1:
                raise TargetUnavailable(
                    f"{error}; it lists {facts.num_models} models; accepted: --model with another name than {facts.model[:MAX_SHOWN]!r}"
                ) from error
            if error.status in (404, 405):
                raise TargetUnavailable(
                    f"{error}; accepted: a server of completions at {COMPLETIONS}: chat alone hides the prompt"
                ) from error
            if error.status in (429, 503) or not may_refuse:
                raise  # busy says nothing about the form
    return None
