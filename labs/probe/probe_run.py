"""One probe: find out what answers, ask in an order that needs few requests, and judge what came back.

Reads, and sends small prompts of its own that nobody else has; resets nothing, and stops at its limits, and at Ctrl-C. What was
seen until then is judged all the same, be it only what the server says of itself.
"""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass
from typing import Callable, Iterator

from labs.probe.asker import LAST_S, Asker, Connect, GivenUp
from labs.probe.budget import STRESS_TOKENS, OutOfTime, ProbeBudget, ProbeLimits
from labs.probe.observation import Observations
from labs.probe.patience import with_patience
from labs.probe.prompt_source import PromptSource
from labs.probe.repeat_series import RepeatSeries
from labs.probe.side_series import SpacedSeries, fill_pool, take_times
from labs.servers.server_client import LimitReached
from labs.servers.server_facts import ServerFacts, find_facts
from labs.targets.base import TargetError

Progress = Callable[[str], None]
NUM_REREADINGS = 4
LATE_S = 1.5  # in which counters that are kept for a moment, or counted late, catch up
MAX_PROMPT_TOKENS = 10_000_000
INTERRUPTED = "interrupted"  # why a probe stopped that a person ended
EVERYTHING, AFTER_IT = "all questions", "all after it"  # left out


@dataclass(frozen=True)
class ProbeSettings:
    """What a person asks of a probe. Raises ValueError for a value outside what each field accepts."""

    model: str | None = None  # None: the first that the server lists
    prompt_tokens: int | None = None  # the length of the person's own prompts
    stress: bool = False  # fill the pool too
    limits: ProbeLimits = ProbeLimits()

    def __post_init__(self) -> None:
        if self.prompt_tokens is not None and not 1 <= self.prompt_tokens <= MAX_PROMPT_TOKENS:
            raise ValueError(f"prompt_tokens is {self.prompt_tokens}; accepted: a whole number from 1 to {MAX_PROMPT_TOKENS}")


def probe(connect: Connect, settings: ProbeSettings, progress: Progress = lambda label: None) -> Observations:
    """What was asked and seen.

    connect  makes a client of the server; called again for connections of their own

    Raises TargetError when nothing usable answers: then there is nothing to judge. KeyboardInterrupt before the first question;
    later it ends the questions, and `stopped` is INTERRUPTED.
    """
    budget, rng = ProbeBudget(settings.limits), random.Random()
    client = connect()
    try:
        progress("what answers there")
        facts = find_facts(client, settings.model)
        if settings.stress:
            budget.limits = _stress_limits(settings.limits, facts.pool_tokens)
        progress("how prompts reach it")
        num_turned_away = itertools.count()
        try:
            source = with_patience(lambda: PromptSource.find(client, facts, rng), budget, lambda: next(num_turned_away))
            budget.take(0, client.num_sent)
        except TargetError as failure:
            if not (isinstance(failure, LimitReached) or budget.seconds_left < LAST_S):
                raise
            return _unasked(facts, settings, budget, client.num_sent, str(failure))
        seen = Observations(facts, source.form, settings.prompt_tokens, num_turned_away=next(num_turned_away))
        asker = Asker(connect, client, source, budget, seen)
        try:
            _ask(asker, settings, rng, progress)
        except GivenUp as failure:
            if not seen.sent:
                raise TargetError(str(failure)) from failure
            seen.stopped, seen.is_given_up = "too many requests failed in a row", True
        except KeyboardInterrupt:
            seen.stopped = INTERRUPTED
        finally:
            seen.seconds, seen.num_requests = budget.seconds, budget.num_requests
        return seen
    finally:
        client.close()


def _unasked(facts: ServerFacts, settings: ProbeSettings, budget: ProbeBudget, num_sent: int, why: str) -> Observations:
    """What is known where a limit was met while it was still open how to ask: what the server says of itself."""
    seen = Observations(facts, "unknown", settings.prompt_tokens, stopped=why, left_out=[EVERYTHING])
    seen.seconds, seen.num_requests = budget.seconds, num_sent
    return seen


def _ask(asker: Asker, settings: ProbeSettings, rng: random.Random, progress: Progress) -> None:
    """All questions in order, the dear ones last; one that would take too long is left out, and cheaper ones go on."""
    seen = asker.observations
    seen.first_reading = asker.counters.read()
    question = "the first question"
    try:
        for question, stage in _questions(asker, settings, rng):
            progress(question)
            _ask_one(seen, question, stage)
            if asker.budget.seconds_left > 0:
                asker.counters.read()  # a restart shows as a fall, until the counters have grown past what they were
    except KeyboardInterrupt:
        seen.left_out += [question, AFTER_IT]
        raise
    finally:
        _read_to_the_end(asker)
    progress("the counters")
    for _ in range(NUM_REREADINGS):
        if asker.budget.seconds_left > -LATE_S:  # after the end a slow server is not read four times more
            asker.reread_counters(1)
    progress("a stream")
    _ask_one(seen, "a stream", lambda: asker.ask_streamed(asker.source.fresh(33)))


def _read_to_the_end(asker: Asker) -> None:
    """The last reading; once more a little later, where much of what was sent is not in it yet."""
    seen = asker.observations
    seen.last_reading = asker.counters.read()
    wait_s = min(LATE_S, asker.budget.seconds_left)
    if seen.is_counted_in_part and wait_s > 0:
        time.sleep(wait_s)
        reading = asker.counters.read()
        seen.last_reading = reading if reading.is_known else seen.last_reading
        seen.late_s = None if seen.is_counted_in_part else wait_s


def _questions(asker: Asker, settings: ProbeSettings, rng: random.Random) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each question's name, and what asks it, made when it is its turn: later ones build on what was seen before."""
    series = RepeatSeries(asker)
    yield "repeats of ever longer prompts", series.climb
    spaced = SpacedSeries(asker, series)
    yield "text and chat", spaced.begin
    yield "the unit of a hit", series.step
    if settings.prompt_tokens is not None:
        yield "a prompt as long as yours", series.repeat_own
    yield "one prompt again and again", series.burst
    yield "repeats after a pause", series.wait_and_repeat
    yield "shared fronts", series.share
    yield "salts", series.salt
    yield "text and chat again", spaced.end
    yield "times", lambda: take_times(asker, series.telling, series.most, rng)
    if settings.stress:
        yield "how much the pool holds", lambda: fill_pool(asker, series.most)


def _ask_one(seen: Observations, question: str, stage: Callable[[], object]) -> None:
    """Ask; where a limit ends that, note it. When all is used up, each question that follows is left out at once."""
    try:
        stage()
    except LimitReached as limit:
        seen.left_out.append(question)
        # Time that is too short for one question is the weaker reason.
        if not seen.stopped or not isinstance(limit, OutOfTime):
            seen.stopped = str(limit)


def _stress_limits(limits: ProbeLimits, pool_tokens: int | None) -> ProbeLimits:
    """Room for rungs that double until one exceeds the pool: together less than four times what it holds."""
    needed = min(STRESS_TOKENS, 6 * (pool_tokens or STRESS_TOKENS))
    return ProbeLimits(limits.max_seconds, limits.max_requests, limits.max_tokens + needed)
