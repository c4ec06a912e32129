"""Served chat: a conversation as one cache serves it, turn by turn, each turn predicted from what was computed before it.

    turn t          ├── prompt: L ─────────┼── output: k ───┬x┤      x was never fed back: it has no K/V
    turn t + 1      ├── history ───────────────────── … ──────┼── user ──┤
      prompt only   ├── L ─────────────────┤                         found, if the answer were left out
      echoed        ├── L + k − 1 ──────────────────────────┤        if its ids came back as they were
      parted        ├── up to the first other id ──┤

Where the ids are echoed the lengths alone predict the hits. Other histories are compared, id by id, with all that was computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from labs import theory
from labs.caches import Cache
from labs.counted_request import send_counted
from labs.protocol import LabSession, Measurement, Prediction
from labs.scenarios.conversation import Conversation
from labs.targets.base import Completion, Target, TargetUnavailable
from labs.witnesses import counted_beside
from labs.workload import TokenIds


@dataclass(frozen=True)
class ChatPlan:
    """One chat to be served."""

    name: str  # the table's row
    conversation: Conversation
    outputs: tuple[int, ...]  # tokens generated, one entry a turn
    is_echo: bool = False  # its ids come back as they were


@dataclass(frozen=True)
class Turn:
    """One request of a chat; all but `hits` was known before it was sent."""

    offered: int  # tokens that the turn before left computed; 0 for the first turn
    prompt_only: int  # hits, had the turn before left its prompt but not its answer
    echoed: int  # hits, had the ids come back as they were
    law: Prediction
    parted_at: int | None  # the answer's first token (negative: of the prompt before it) that came back as another
    completion: Completion

    @property
    def hits(self) -> int | None:
        """Tokens found; None where a server does not tell."""
        return self.completion.num_cached_tokens


@dataclass(frozen=True)
class Chat:
    """A chat as one cache served it."""

    plan: ChatPlan
    turns: tuple[Turn, ...]

    @property
    def lost(self) -> int | None:
        """Tokens that echoed ids would have found and these did not; None where a server does not tell."""
        if any(turn.hits is None for turn in self.turns):
            return None
        return sum(turn.echoed - turn.hits for turn in self.turns)

    @property
    def parting(self) -> str:
        """Where its history parts from what was said, in words."""
        places = [turn.parted_at for turn in self.turns if turn.parted_at is not None]
        if not places:
            return "its ids came back as they were"
        first = f"at token {places[0]:,} of the answer" if places[0] >= 0 else f"{-places[0]:,} token(s) before the prompt's end"
        return f"{len(places)} of {len(self.turns) - 1} histories part from what was said, the first {first}"

    @property
    def by_turn(self) -> list[dict[str, int | None]]:
        """JSON-ready evidence, one entry a turn."""
        return [
            {"offered": turn.offered, "predicted_hits": int(turn.law.value), "hits": turn.hits, "parted_at": turn.parted_at}
            for turn in self.turns
        ]

    def measurements(self, group: str) -> list[Measurement]:
        """What each turn found, their sum by a server's counters, and what was lost against echoed ids."""
        row, laws = self.plan.name, [int(turn.law.value) for turn in self.turns]
        found = [
            Measurement(f"turn {number}", "tokens", (turn.hits,), group, row, turn.law, key=number == 2)
            for number, turn in enumerate(self.turns, start=1)
            if turn.hits is not None
        ]
        due = Prediction(sum(laws), "the sum over the turns")
        found += counted_beside(group, row, [turn.completion for turn in self.turns], due)
        if self.lost is not None:
            predicted = sum(turn.echoed for turn in self.turns) - sum(laws)
            law = Prediction(predicted, "what echoed ids would find − what these find, over all turns")
            found.append(Measurement("lost", "tokens", (self.lost,), group, row, law))
        return found


def serve_chats(
    session: LabSession, target: Target, cache: Cache, plans: Sequence[ChatPlan]
) -> tuple[list[Measurement], list[Chat]]:
    """All chats of one cache, one after the other; their measurements are recorded.

    Raises TargetUnavailable for a server that keeps the ids of its answers to itself.
    """
    measurements: list[Measurement] = []
    chats: list[Chat] = []
    computed: list[TokenIds] = []  # prompt and output of every request so far, without the last token
    for plan in plans:
        chats.append(_serve(session, target, cache, plan, computed))
        found = chats[-1].measurements(cache.title)
        session.record(*found)
        measurements += found
    return measurements, chats


def _serve(session: LabSession, target: Target, cache: Cache, plan: ChatPlan, computed: list[TokenIds]) -> Chat:
    """One chat; `computed` grows by what its requests leave."""
    turns: list[Turn] = []
    said: TokenIds = ()  # prompt and output of the turn before
    num_outputs = 0  # tokens of that output
    for number, max_tokens in enumerate(plan.outputs, start=1):
        prompt = plan.conversation.prompt()
        before = len(said) - num_outputs  # tokens of the prompt before this one
        offered = theory.offered_by_turn(before, num_outputs) if said else 0
        # A first turn has nothing before it; what a server puts in front of every prompt is no reuse of a turn.
        prompt_only, echoed = (int(cache.laws.predict(theory.reuse, match, len(prompt)).value) for match in (before, offered))
        if plan.is_echo and said and not cache.has_drafter:
            law = cache.laws.predict(theory.next_turn_hits, before, num_outputs)
        else:
            law = cache.laws.predict(theory.reuse, theory.longest_match(prompt, computed), len(prompt))
        common = theory.common_prefix(said, prompt)
        parted_at = common - before if common < len(said) else None
        label = f"{cache.title}: {plan.name}, turn {number}"
        completion = send_counted(session, target, prompt, label, max_tokens=max_tokens)
        turns.append(Turn(offered, prompt_only, echoed, law, parted_at, completion))
        if number < len(plan.outputs):
            _check_ids(completion, max_tokens)
            plan.conversation.hear(completion.output_token_ids)
        said, num_outputs = (*prompt, *completion.output_token_ids), max_tokens
        computed.append(said[:-1])
    return Chat(plan, tuple(turns))


def _check_ids(completion: Completion, num_tokens: int) -> None:
    """Ids that a server keeps to itself cannot come back as they were."""
    if len(completion.output_token_ids) != num_tokens:
        raise TargetUnavailable(
            "the server does not tell the ids it generated, so they cannot be sent back; accepted: a server that takes "
            "return_token_ids (vLLM from 0.10.2 on, SGLang 0.5.23, labcli serve)"
        )
