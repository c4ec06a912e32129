"""Repeats: prompts that are sent again exactly as they were, in the lengths and the order that tell most.

    ladder      65, 257, 1,025, 4,097 tokens, each twice (three times if the first repeat finds nothing), until one finds
    staircase   lengths about which the explanations of what was found disagree; then n and n + 1 tokens at the unit's edge
    bursts      one prompt again and again on new connections: replicas miss it once each, a salt always; and when it is
                known, several times at once: where the idlest replica answers, one after the other all meet the same one
    late        the same after a pause: a prompt that is found only then is published late
    own         a prompt as long as the person's own
    shared      the front of a known prompt with another tail, of several prompts
    salts       one prompt without a salt, with one, with another; then a chat message
"""

from __future__ import annotations

import time

from labs.probe.asker import Asker
from labs.probe.explanation import telling_length
from labs.probe.prompt_source import Prompt
from labs.probe.sent import BURST, LADDER, LATE, NO_SALT, OTHER_SALT, OWN, OWN_SALT, SALTED, SALTED_CHAT, SHARED, STAIRCASE, Sent

FIRST_WORDS = (2, 20)  # of two prompts, where the server alone counts tokens
LADDER_LENGTHS = (65, 257, 1_025, 4_097)
LONGEST_WITHOUT = 257  # tokens on the ladder of a server that says itself that it caches nothing
NUM_BURSTS = 3
BURST_SENDS = 6  # of each prompt, where nothing is missed
MAX_BURST_SENDS = 16
NUM_ABREAST = 4  # of a known prompt at once
MAX_STEPS = 10  # of the staircase, before the edge; a text is only about as long as meant, and may tell nothing
LATE_PAUSE_S = 1.0
MIN_LENGTH = 33  # shorter prompts may share their front with anybody's by chance, where pages are single tokens
LARGEST_EDGE = 2_200  # units up to this are asked at their edge
RESERVE = 8  # tokens under the server's limits
MAX_TEXT = 2_500  # tokens of a text
NUM_FRONTS, MIN_FRONTS = 6, 2  # that are shared once each; fewer where they would take
SHARED_PART = 8  # more than one part in so many of the time and the tokens that are left


class RepeatSeries:
    """Asks in order; what it needs to know it reads from the asker's observations."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._observations = asker.observations

    @property
    def most(self) -> int:
        """Tokens of the longest prompt that the server's limits and the budget allow to be sent three times."""
        facts, seen, source = self._observations.facts, self._observations, self._asker.source
        bounds = [self._asker.budget.tokens_left // 3]
        if facts.max_model_len:
            room = facts.max_model_len - RESERVE - self._num_in_front
            bounds += [source.within(facts.max_model_len) if source.form == "text" else room]
        bounds += [facts.pool_tokens // 2] if facts.pool_tokens else []
        bounds += [seen.longest_refused - 1] if seen.longest_refused else []
        return max(2, min(bounds))

    @property
    def _num_in_front(self) -> int:
        """Tokens that the server counted beyond those that were sent: something puts them in front."""
        return max([0, *(one.length - one.num_ids for one in self._observations.sent if one.num_ids)])

    @property
    def most_text(self) -> int:
        """The same of a text of common words, whose tokens are only estimated."""
        most = self._observations.facts.max_model_len
        return min(self.most, self._asker.source.within(most) if most else self.most)

    def climb(self) -> None:
        """The ladder, up to the first length of which a repeat finds something."""
        for number in FIRST_WORDS if self._asker.source.form == "text" else ():
            self._asker.ask(LADDER, self._asker.source.fresh_ids(number), may_refuse=True)  # what a word costs
        announced, own = self._observations.facts.unit_size, self._observations.prompt_tokens
        lengths = {*LADDER_LENGTHS, *([max(2 * announced + 1, MIN_LENGTH)] if announced else []), *([own] if own else [])}
        for length in sorted({min(length, self.most) for length in lengths}):
            if length > self.most or (length > LONGEST_WITHOUT and self._observations.facts.is_caching is False):
                return
            sent = self.repeat(LADDER, length, times=2, may_refuse=True)
            endpoints = self._asker.endpoints
            if sent and self._is_unseen(sent) and endpoints.has_native and not endpoints.is_native:
                endpoints.use_native()
                sent = self.repeat(LADDER, length, times=2, may_refuse=True)
            if sent and sent[-1].cached == 0:
                sent += self.again(LADDER, times=1)
            if sent and sent[-1].cached:
                return

    def step(self) -> None:
        """The staircase: until one explanation is left, then at the edge of its unit."""
        seen = self._observations
        for _ in range(MAX_STEPS):
            length = telling_length(seen.explanations, self.most)
            if length is None:
                break
            self.repeat(STAIRCASE, length, times=2)
        unit = seen.unit
        if unit is None or not seen.hitting_repeats or unit > LARGEST_EDGE:
            return
        edge = unit * max(2, -(-MIN_LENGTH // unit))
        for length in (edge, edge + 1):
            if length <= self.most:
                self.repeat(STAIRCASE, length, times=2)

    def repeat_own(self) -> None:
        """A prompt as long as the person's own, where the ladder ended before it; again where that falls short."""
        seen = self._observations
        length = seen.own_prompt_tokens
        if length is None or length > self.most or not seen.hitting_repeats or seen.own_repeats:
            return
        sent = self.repeat(OWN, length, times=2, may_refuse=True)
        if len(sent) == 2 and seen.falls_short(sent[-1]):
            self.again(OWN, times=2)

    def burst(self) -> None:
        """Some prompts, each until it was found about twice as often in a row as it was missed."""
        for _ in range(NUM_BURSTS):
            prompt = self._asker.source.fresh(self.telling)
            misses = in_a_row = 0
            for number in range(MAX_BURST_SENDS):
                sent = self._asker.ask(BURST, prompt, alone=True)
                if sent is None or sent.cached is None:
                    return
                misses, in_a_row = (misses, in_a_row + 1) if sent.cached else (misses + 1, 0)
                if number + 1 >= BURST_SENDS and in_a_row >= 2 * misses + 1:
                    break
                if number + 1 >= 2 * BURST_SENDS and misses == number + 1:
                    return  # never found: more of the same tells nothing
            if misses <= 1:
                self._ask_at_once(prompt)

    def _ask_at_once(self, prompt: Prompt) -> None:
        """A known prompt several times at once. Where not all find it once more, since by then each replica knows it that was
        asked; then another one. Another one too where they came one after the other after all, as on a quick server."""
        seen, before = self._observations, self._observations.missed_at_once
        if before and len(before) >= self._most_at_once(before):
            return
        self._asker.ask_at_once(prompt, NUM_ABREAST)
        if not any(before) and seen.missed_at_once[-1]:
            self._asker.ask_at_once(prompt, NUM_ABREAST)

    def _most_at_once(self, missed: list[int | None]) -> int:
        """How many groups in all, by those that were sent."""
        first = self._observations.at_once[0]
        was_apart = len(first.sent) == NUM_ABREAST and not first.is_abreast
        return (3 if any(missed) else 1) + (was_apart and not missed[0])

    def wait_and_repeat(self) -> None:
        """Repeats after a pause; only worth the time where bursts missed what was found then, or is found elsewhere."""
        bursts = [turns for turns in self._observations.turns_of(BURST) if len(turns) > 1]
        is_never_found = bool(self._observations.hitting_repeats) and not any(one.cached for turns in bursts for one in turns)
        if not any(not turns[1].cached and (turns[-1].cached or is_never_found) for turns in bursts):
            return
        for _ in range(NUM_BURSTS):
            prompt = self._asker.source.fresh(self.telling)
            for pause_s in (0.0, min(LATE_PAUSE_S, max(0.0, self._asker.budget.seconds_left))):
                time.sleep(pause_s)
                self._asker.ask(LATE, prompt, alone=True)

    def share(self) -> None:
        """A prompt, then another with its front and another tail: several such pairs, since a router by whole prompts sends
        some to where the front is known. A miss among hits may be anything's: then some pairs more."""
        length, seen, budget = 2 * self.telling, self._observations, self._asker.budget
        if length > self.most or (seen.explanation is None and seen.facts.is_caching is False):
            return
        by_tokens = budget.tokens_left // (SHARED_PART * 2 * length)
        by_time = int(budget.seconds_left / SHARED_PART / max(budget.expected_s(2 * length), 1e-9))
        # Where repeats found nothing, some pairs tell whether a cache of whole replies answered them.
        most = MIN_FRONTS if seen.explanation is None else max(MIN_FRONTS, min(NUM_FRONTS, by_tokens, by_time))
        for number in range(2 * most):
            if number >= most and sum(found < possible for found, possible in seen.shares) != 1:
                return
            front = self._asker.source.fresh(length)
            # In words of unknown length this many tokens at least.
            num_shared = len(front.ids) - max(1, len(front.ids) // 4)
            if self._asker.ask(SHARED, front) is None:
                continue  # it failed: what shares its front can find nothing
            self._asker.ask(SHARED, self._asker.source.with_front(front, num_shared), matched=num_shared)

    def salt(self) -> None:
        """A prompt without a salt, with one, with the same again, with another: each salt must be a cache of its own."""
        if self._observations.facts.kind == "openai":
            return  # a field of vLLM and SGLang
        prompt = self._asker.source.fresh(self.telling)
        for salt in (NO_SALT, OWN_SALT, OWN_SALT, OTHER_SALT):
            sent = self._asker.ask(SALTED, prompt, salt=salt, may_refuse=salt != NO_SALT)
            if salt == OWN_SALT and sent is not None and sent.cached == 0 and self._num_salted(OWN_SALT) == 2:
                self._asker.ask(SALTED, prompt, salt=salt, may_refuse=True)  # one miss may be anything's
        seen = self._observations
        if self._num_salted(OWN_SALT) and seen.hitting_repeats and seen.form != "chat" and not seen.refuses_chat:
            self._salt_chat()

    def _salt_chat(self) -> None:
        """A chat message without a salt, with one, and without one again, by which the second is judged."""
        number, message = self._asker.source.number(), self._asker.source.text(self.message_length)
        for salt in (NO_SALT, OWN_SALT, NO_SALT):
            self._asker.ask_chat(number, message, purpose=SALTED_CHAT, salt=salt)

    def _num_salted(self, salt: str) -> int:
        return sum(one.salt == salt for one in self._observations.of(SALTED))

    def repeat(self, purpose: str, length: int, *, times: int, may_refuse: bool = False) -> list[Sent]:
        """A new prompt, so many times in a row."""
        self._prompt = self._asker.source.fresh(length)
        return self.again(purpose, times=times, may_refuse=may_refuse)

    def again(self, purpose: str, *, times: int, may_refuse: bool = False) -> list[Sent]:
        """The prompt sent last, so many times more."""
        sent = [self._asker.ask(purpose, self._prompt, may_refuse=may_refuse) for _ in range(times)]
        return [one for one in sent if one is not None]

    def _is_unseen(self, sent: list[Sent]) -> bool:
        return all(one.cached is None for one in sent)

    @property
    def message_length(self) -> int:
        """Tokens of a text or a message that must find something, a chat template's own among them."""
        return min(2 * self.telling + 32, self.most_text, MAX_TEXT)

    @property
    def telling(self) -> int:
        """Tokens of a prompt whose repeat must find something, if repeats of any length do."""
        front = self._asker.source.num_front
        hits = [max(MIN_LENGTH, one.length - front) for one in self._observations.hitting_repeats if one.length]
        explanation = self._observations.explanation
        if explanation is not None:
            return max(explanation.shortest_hit, MIN_LENGTH)
        announced = self._observations.facts.unit_size
        return min(hits) if hits else min(self.most, max(257, 2 * announced + 1 if announced else 0))
