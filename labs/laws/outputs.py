"""Laws of what a model answers, whatever a cache does."""

from __future__ import annotations

from labs.laws.law import law


@law("greedy outputs do not depend on {cause}, near ties apart")
def differing_outputs(cause: str) -> int:
    """Outputs that differ by `cause` ("the cache", "preemption"): none, since reused K/V are what would be computed."""
    return 0
