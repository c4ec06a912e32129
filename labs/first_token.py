"""First token: whether a prompt's greedy answer begins with the same token cold and warm.

The cheapest check that a cache's keys and values are those of the prompt: it costs no request of its own, since a lab about
hits sends each prompt cold and warm anyway. In half precision a near tie may fall to the other token without any fault; such a
prompt is asked again in float32. On a server, whose precision is not told, it is judged by how close the two best tokens were
(labs/output_check.py).
"""

from __future__ import annotations

from dataclasses import replace

from labs.caches import Cache
from labs.output_check import check_outputs, compare_in_float32, judge_on_server, num_unexplained, output_law
from labs.protocol import LabSession, Measurement
from labs.targets.base import Completion, Target
from labs.workload import TokenIds

NOT_JUDGED = "the server does not tell the ids it generated or how close the two best tokens were, or the repeat found nothing"
NOTE = "other_token: prompts whose first output token is not the same cold and warm, near ties apart"
NOTE_ON_SIM = f"{NOTE}; simulated tokens do not depend on K/V, so it cannot fail here"


class FirstTokens:
    """The first tokens of one cache's prompts, cold and warm."""

    def __init__(self, session: LabSession, cache: Cache, canary_ids: TokenIds) -> None:
        self._session, self._cache, self._canary_ids = session, cache, canary_ids
        self._others: list[int | None] = []  # of each prompt: 1 for another token, 0 for the same, None: not to be judged

    def compare(self, target: Target, prompt: TokenIds, cold: Completion, warm: Completion) -> None:
        """Note whether they begin alike; `cold` brings `top_logprob_gaps`. May open a target in float32 beside `target`."""
        self._others.append(self._other_token(target, prompt, cold, warm))

    def measurements(self, group: str) -> list[Measurement]:
        """How many prompts are answered otherwise when warm; empty where none is judged."""
        judged = [other for other in self._others if other is not None]
        if not judged:
            return []
        law = output_law(self._session.open_target.kind)
        note = NOTE if law is not None else NOTE_ON_SIM
        return [Measurement("other_token", "prompts", (sum(judged),), group, self._cache.title, law, note=note)]

    @property
    def findings(self) -> list[str]:
        """How many are not judged, and why."""
        num_unjudged, title = self._others.count(None), self._cache.title
        if not num_unjudged:
            return []
        return [f"{title}: {num_unjudged} of {len(self._others)} first tokens are not judged: {NOT_JUDGED}"]

    def _other_token(self, target: Target, prompt: TokenIds, cold: Completion, warm: Completion) -> int | None:
        if not cold.output_token_ids or not warm.output_token_ids:
            return None
        check = check_outputs(cold, cold, warm)
        if self._session.open_target.served is not None:
            return judge_on_server(replace(check, was_warm=warm.num_cached_tokens != 0))[0]
        proof = None
        if not check.equal and target.info.dtype != "float32":
            proof = compare_in_float32(self._session, self._cache, prompt, self._canary_ids, 1)
        return num_unexplained(check, target.info.dtype, proof)
