"""ServerFlags: what to start a server with, so that labs can read what it did; by engine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from labs.servers.server_facts import ServerFacts

FIRST_COUNTERS = (0, 8)  # vLLM's first release whose engine, unless another is asked for, counts tokens found (V1)


@dataclass(frozen=True)
class ServerFlags:
    """What switches a thing on, as words that follow "start it ": "with --x", "without --y"."""

    caching: str  # prefix caching itself
    report: str  # cached tokens in each reply's usage
    counters: str  # counters of tokens found in /metrics
    reset: str | None  # a way to empty the cache over HTTP; None: none is known

    @classmethod
    def of(cls, facts: ServerFacts) -> ServerFlags:
        """For what answers there."""
        flags = OURS if facts.is_labcli else BY_KIND[facts.kind]
        if facts.kind == "vllm" and not facts.is_labcli and is_before(facts.version, FIRST_COUNTERS):
            return replace(flags, counters="as a release from 0.8 on: before, its engine has no such counters")
        return flags


def is_before(version: str | None, bound: tuple[int, ...]) -> bool:
    """Whether a version is surely older; an unknown one is taken as recent."""
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version or "")
    return numbers is not None and tuple(int(one or 0) for one in numbers.groups()) < bound


OURS = ServerFlags("with --prefix-caching", "with --cache-report", "with --metrics", "with --reset")
BY_KIND = {
    "vllm": ServerFlags(
        caching="without --no-enable-prefix-caching",
        report="with --enable-prompt-tokens-details",
        counters="without --disable-log-stats, and let /metrics through",
        reset="with VLLM_SERVER_DEV_MODE=1",
    ),
    "sglang": ServerFlags(
        caching="without --disable-radix-cache",
        report="with --enable-cache-report",
        counters="with --enable-metrics",
        reset="without --admin-api-key, or give /flush_cache free",
    ),
    "openai": ServerFlags(
        caching="with its prefix cache on",
        report="so that usage.prompt_tokens_details.cached_tokens is in its replies",
        counters="so that vLLM's or SGLang's /metrics can be read here",
        reset=None,
    ),
}
