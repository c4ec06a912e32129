"""Observations: what the probe asked of a server and what came back. The rules read this, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from labs.probe.at_once import AtOnce
from labs.probe.clock import Clock
from labs.probe.explanation import Explanation, explain
from labs.probe.new_prompts import NewPrompts
from labs.probe.sent import BURST, KEPT, LADDER, OF_REPEATS, OWN, SHARED, STAIRCASE, UNKNOWN, Sent
from labs.servers.prefix_counters import CounterReading
from labs.servers.server_facts import ServerFacts
from labs.servers.server_reply import Usage

SLACK, MIN_SLACK = 0.05, 64  # of the probe's tokens, and tokens: retries, and requests that are still being counted


@dataclass(frozen=True)
class Streamed:
    """One streamed request that asked for usage."""

    usage: Usage
    error: str = ""  # why there was none, in one line


@dataclass(frozen=True)
class Rung:
    """--stress: one prompt, then others of so many tokens, then the prompt again."""

    tokens_between: int
    length: int
    cached: int | None


@dataclass
class Observations:
    """Filled by a run as it goes on, so that a run that is cut short can still be judged."""

    facts: ServerFacts
    form: str  # "ids", "words" (exact), "text" (the server alone counts), "chat" (it has no completions), or "unknown" yet
    prompt_tokens: int | None = None  # the length of the person's own prompts
    sent: list[Sent] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # one line each
    num_busy_failures: int = 0  # of these: still turned away after retries, since the server was busy
    num_turned_away: int = 0  # times a request was, and was sent again
    is_given_up: bool = False  # too many failed in a row
    longest_refused: int | None = None  # tokens of a prompt that the server refused as too long
    refuses_chat: str = ""  # why, in one line
    tokenized: int | None = None  # tokens of the text, by /tokenize
    opening_id: int | None = None  # with which every text begins, by /tokenize: a BOS
    clocks: dict[str, Clock] = field(default_factory=dict)  # by purpose: what the front that the server showed tells of now
    streamed: Streamed | None = None
    first_reading: CounterReading = UNKNOWN  # lifetime counts before the first request of `sent`
    last_reading: CounterReading = UNKNOWN
    late_s: float | None = None  # the counters lacked much of what was sent until they were read again so much later
    num_falls: int = 0  # readings on the probe's own connection in which a counter was lower than in the one before
    rereadings: list[CounterReading] = field(default_factory=list)  # one after the other, nothing sent in between
    neighbors: list[tuple[CounterReading, CounterReading]] = field(default_factory=list)  # on two connections, likewise
    at_once: list[AtOnce] = field(default_factory=list)
    gauge: float | None = None  # SGLang's cache_hit_rate, at the end
    rungs: list[Rung] = field(default_factory=list)
    num_cut_tokens: int = 0  # of requests that a limit or Ctrl-C cut: the counters may count them, and no reply tells
    stopped: str = ""  # the limit that ended the run early
    left_out: list[str] = field(default_factory=list)  # questions that were not asked, or not to their end, for that limit
    seconds: float = 0.0
    num_requests: int = 0  # with those that only found out how to send

    def of(self, *purposes: str) -> list[Sent]:
        return [one for one in self.sent if one.purpose in purposes]

    @property
    def repeats(self) -> list[Sent]:
        return [one for one in self.of(*OF_REPEATS) if one.turn]

    @property
    def known_by_usage(self) -> bool:
        """Whether replies themselves tell what was found, so that no counter need be read."""
        sent = self.of(LADDER)
        # SGLang's own endpoint is asked only after completions told nothing: those before count no more.
        begin = next((index for index, one in enumerate(sent) if one.native_cached is not None), 0)
        return bool(sent) and all(one.usage.cached_tokens is not None or one.native_cached is not None for one in sent[begin:])

    @property
    def known_repeats(self) -> list[Sent]:
        return [one for one in self.repeats if one.cached is not None]

    @property
    def hitting_repeats(self) -> list[Sent]:
        return [one for one in self.known_repeats if one.cached]

    @property
    def is_looked_up(self) -> bool | None:
        """Whether the server looks prompts up at all: by its configuration, what it found, or vLLM's counter of lookups."""
        if self.hitting_repeats:
            return True
        if self.facts.is_caching is not None:
            return self.facts.is_caching
        grown = [one.counted.queries for one in self.of(LADDER) if one.counted.is_known]
        return any(grown) if grown and self.facts.kind == "vllm" else None

    @property
    def prompt_repeats(self) -> list[Sent]:
        """Known repeats that the probe's own requests in between cannot have pushed out: none, or few beside the pool."""
        found, num_sent, ended = [], 0, {}
        for one in self.sent:
            length = one.length or 0
            between = num_sent - ended.get(one.prompt, num_sent)
            is_kept = not between or between + 2 * length <= (self.facts.pool_tokens or 0) // 2
            if one.purpose in OF_REPEATS and one.turn and one.cached is not None and is_kept:
                found.append(one)
            num_sent += length
            ended[one.prompt] = num_sent
        return found

    @property
    def own_repeats(self) -> list[Sent]:
        """Repeats of prompts exactly as long as the person's own; where the server alone counts, about as long."""
        length = self.prompt_tokens
        return [one for one in self.known_repeats if length and (one.purpose == OWN or one.num_ids == length)]

    @property
    def shares(self) -> list[tuple[int, int]]:
        """Of each prompt that shared its front with the one before: tokens found, and how many can be."""
        law, sent = self.explanation, [one for one in self.of(SHARED) if one.matched is not None and one.cached is not None]
        # What stands in front of each prompt is shared as well.
        known = [(one, one.matched + one.length - (one.num_ids or one.length)) for one in sent if one.length]
        return [] if law is None else [(one.cached, law.hits(match, one.length)) for one, match in known]

    @property
    def bursts(self) -> list[list[int]]:
        """Tokens found by each burst's requests, in the order sent, where all are known."""
        found = [[one.cached for one in turns] for turns in self.turns_of(BURST)]
        return [turns for turns in found if len(turns) > 1 and None not in turns]

    @property
    def missed_at_once(self) -> list[int | None]:
        """Of each known prompt that was sent several times at once, how many missed it; None where nothing tells."""
        usual = {turns[-1].prompt: turns[-1].cached or 0 for turns in self.turns_of(BURST)}
        by_new = self.new_prompts.most_found
        return [one.num_missed(usual.get(one.sent[0].prompt, 0), by_new) if one.sent else None for one in self.at_once]

    @property
    def is_jumping(self) -> bool:
        """Whether counters fell between readings with nothing sent in between: several replicas answer them."""
        # The last reading is on the probe's own connection, right before the others.
        pairs = [*self.neighbors, *pairwise(one for one in (self.last_reading, *self.rereadings) if one.is_known)]
        return any(
            earlier.source == later.source and (later.queries < earlier.queries or later.hits < earlier.hits)
            for earlier, later in pairs
        )

    @property
    def burst_finds(self) -> list[list[bool]]:
        """Of each burst's requests whether more was found than a new prompt finds."""
        by_new = self.new_prompts.most_found
        return [[found > by_new for found in turns] for turns in self.bursts]

    @property
    def is_steady(self) -> bool:
        """Whether a prompt is found from its first repeat on: then a miss elsewhere is no replica's."""
        return bool(self.bursts) and all(all(turns[1:]) for turns in self.burst_finds)

    @property
    def is_unsteady(self) -> bool:
        """Whether a prompt that was sent again at once was missed."""
        return any(not all(turns[1:]) for turns in self.burst_finds)

    @property
    def is_kept(self) -> bool | None:
        """Whether a prompt as old as the first text is still found; None where nothing tells. One miss may be anything's."""
        later = [one.cached for one in self.of(KEPT)[1:]]
        return None if not later or None in later else max(later) > self.new_prompts.most_found

    @property
    def foreign_queries(self) -> int | None:
        """Tokens looked up beyond this probe's own, those of its cut requests too; None where the counters do not tell."""
        growth, lengths = self.last_reading.growth_since(self.first_reading), [one.length for one in self.sent]
        if not growth.is_known or None in lengths:
            return None
        return max(0, growth.without_checks(sum(lengths)).queries - sum(lengths) - self.num_cut_tokens)

    @property
    def is_shared(self) -> bool | None:
        """Whether others were served as well; None where no counter tells."""
        foreign = self.foreign_queries
        return None if foreign is None else foreign > max(MIN_SLACK, SLACK * sum(one.length or 0 for one in self.sent))

    @property
    def is_crowded(self) -> bool:
        """Whether others looked up so much that they may push out what this probe left, before it asks again."""
        return bool(self.is_shared) and (self.foreign_queries or 0) > (self.facts.pool_tokens or 0) // 2

    @property
    def is_counted_in_part(self) -> bool:
        """Whether the counters grew, but by clearly less than was sent."""
        growth, lengths = self.last_reading.growth_since(self.first_reading), [one.length or 0 for one in self.sent]
        own = sum(lengths)
        is_counting = growth.queries or self.hitting_repeats  # else nothing is looked up, and nothing is awaited
        return growth.is_known and bool(is_counting) and growth.queries < own - max(MIN_SLACK, SLACK * own)

    def falls_short(self, one: Sent) -> bool:
        """Whether a repeat found less than one of its length can, or nothing where no unit is known."""
        found = self.explanation
        if one.cached is None or one.length is None:
            return False
        return one.cached < found.hits(one.length, one.length) if found is not None else one.cached == 0

    @property
    def own_prompt_tokens(self) -> int | None:
        """The length of the person's prompts, where a request may have it."""
        return None if self.is_own_too_long else self.prompt_tokens

    @property
    def is_own_too_long(self) -> bool:
        """Whether the person's prompts exceed what a request may have, by what the server says or refused."""
        limits = [one for one in (self.facts.max_model_len, self.longest_refused) if one is not None]
        return self.prompt_tokens is not None and any(self.prompt_tokens >= limit for limit in limits)

    @property
    def longest_repeat(self) -> int:
        """Tokens of the longest prompt that was sent again; 0 without one."""
        return max((one.length or 0 for one in self.repeats), default=0)

    @property
    def new_prompts(self) -> NewPrompts:
        """The first requests of the prompts that were made to be repeated or timed."""
        return NewPrompts(tuple(one for one in self.of(*OF_REPEATS) if not one.turn), self.unit)

    def turns_of(self, purpose: str) -> list[list[Sent]]:
        """Each prompt's requests of one purpose, in the order sent."""
        turns: dict[int, list[Sent]] = {}
        for one in self.of(purpose):
            turns.setdefault(one.prompt, []).append(one)
        return list(turns.values())

    @property
    def explanations(self) -> tuple[Explanation, ...]:
        """Every unit and rule that explains all of the ladder and the staircase; empty before anything was found.

        The last request of each prompt counts: earlier ones may have met other replicas.
        """
        last = [turns[-1] for purpose in (LADDER, STAIRCASE) for turns in self.turns_of(purpose) if turns[-1].turn]
        return explain(tuple((one.length, one.cached) for one in last if one.length and one.cached is not None))

    @property
    def explanation(self) -> Explanation | None:
        """The only one, or the one that the server's announced unit picks out of several."""
        fitting = self.explanations
        announced = [one for one in fitting if one.unit == self.facts.unit_size]
        for group in (fitting, announced):
            if len(group) == 1:
                return group[0]
        return None

    @property
    def unit(self) -> int | None:
        """Tokens of which a hit is a multiple: as measured, else as announced."""
        found = self.explanation
        return found.unit if found is not None else self.facts.unit_size
