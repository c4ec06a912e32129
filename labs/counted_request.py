"""One request, counted twice: by its own report and by the cache's counters.

A request tells how many tokens it found (`num_cached_tokens`); the cache counts what was looked up and found in all. The two
come from different places, so a lab that compares hits with a law asks both. On a server both are kept in the completion's
evidence, for the lab to measure: it is not ours to trust or to refuse.
"""

from __future__ import annotations

from typing import Sequence

from labs.protocol import LabSession
from labs.targets.base import Completion, Target, TargetError


def send_counted(
    session: LabSession, target: Target, token_ids: Sequence[int], label: str, *, max_tokens: int = 1, logprob_gaps: bool = False
) -> Completion:
    """Send one request alone; its completion, in which `num_cached_tokens` is a number, unless a server does not tell it.

    Raises TargetError when, in this process, its report and the counters disagree, or not all of its tokens were looked up.
    """
    if session.open_target.served is not None:
        completion = target.complete(token_ids, max_tokens=max_tokens, logprob_gaps=logprob_gaps)
        session.progress(label)
        return completion
    target.counters()  # start from zero
    completion = target.complete(token_ids, max_tokens=max_tokens, logprob_gaps=logprob_gaps)
    counted = target.counters()
    if (counted.hits, counted.queries) != (completion.num_cached_tokens, len(token_ids)):
        raise TargetError(
            f"{label}: a request of {len(token_ids)} tokens reports {completion.num_cached_tokens} cached, "
            f"the counters say {counted.hits} of {counted.queries}"
        )
    session.progress(label)
    return completion
