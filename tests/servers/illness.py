"""Illness: what a broken server does to the replies that a healthy one would give, and to which.

    OF_COMPLETIONS["half a JSON"]                       to each completion, from the first on
    late(OF_COMPLETIONS["half a JSON"], 12)             from the twelfth completion on: in the middle of a lab
    now_and_then(OF_COMPLETIONS["500"], 3)              to each third
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable

from tests.servers.broken_server import Visit

Act = Callable[[Visit], None]

MODELS, COMPLETIONS, METRICS = "/v1/models", "/v1/completions", "/metrics"
GENERATING = (COMPLETIONS, "/v1/chat/completions", "/generate")


@dataclass(frozen=True)
class Illness:
    """One way to be ill.

    act      does it to one request
    paths    the requests it is about; empty: all
    is_rude  acts as soon as a connection is made, before anything is asked
    """

    act: Act
    paths: tuple[str, ...] = GENERATING
    only_streams: bool = False
    is_rude: bool = False

    def concerns(self, path: str, body: bytes) -> bool:
        return (not self.paths or path in self.paths) and (not self.only_streams or b'"stream":true' in body.replace(b" ", b""))


def late(illness: Illness, first: int) -> Illness:
    """Healthy up to a request."""
    return replace(illness, act=lambda visit: (illness.act if visit.number >= first else Visit.pass_on)(visit))


def now_and_then(illness: Illness, every: int) -> Illness:
    """Healthy but for each so-manieth request."""
    return replace(illness, act=lambda visit: (Visit.pass_on if visit.number % every else illness.act)(visit))
