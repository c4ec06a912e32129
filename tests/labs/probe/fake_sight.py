"""What a probe would see of a server that follows a law, or breaks it in one place: observations without any server."""

from __future__ import annotations

from dataclasses import replace

from labs.probe import sent as kinds
from labs.probe.at_once import AtOnce
from labs.probe.explanation import Explanation
from labs.probe.observation import Observations, Streamed
from labs.probe.sent import Sent
from labs.servers.prefix_counters import CounterReading
from labs.servers.server_facts import ServerFacts
from labs.servers.server_reply import ABSENT, NO_DETAILS, Usage

VLLM = ServerFacts(
    "vllm", False, "0.32.0", "m", 1, max_model_len=8_192, unit_size=16, is_caching=True, pool_tokens=100_000,
    has_drafter=False, has_counters=True, has_metrics=True, has_reset=True, has_tokenizer=True,
)  # fmt: skip
SGLANG = replace(VLLM, kind="sglang", version="0.5.23", unit_size=1)
OTHER = ServerFacts("openai", False, None, "m", 1)
LAW = Explanation(16)


def usage(length, cached):
    return Usage(length, 1, cached, NO_DETAILS if cached is None else "reported")


def sent(purpose, prompt, turn, length, cached, **fields):
    """One request of token ids, by usage; with `counted` alike unless said."""
    fields.setdefault("counted", CounterReading(length, cached if cached is not None else 0))
    return Sent(purpose, prompt, turn, length, usage(length, cached), **fields)


def sight(facts=VLLM, law=None, *, burst_hits=None, **fields):
    """A whole probe of a server on which repeats find what `law` (an Explanation; None: nothing) says."""
    hits = (lambda match, length: 0) if law is None else law.hits
    unit, seen = law.unit if law else 16, Observations(facts, "ids", **fields)
    lengths = [65, 257, 1_025, 4_097] if law is None else [max(33, 2 * law.shortest_hit)]
    number = 0
    for length in lengths:
        number += 1
        seen.sent += [sent(kinds.LADDER, number, turn, length, hits(length * turn, length)) for turn in (0, 1)]
    for length in () if law is None else (64, 2 * unit, 2 * unit + 1, 3 * unit, 3 * unit + 1):
        number += 1
        seen.sent += [sent(kinds.STAIRCASE, number, turn, length, hits(length * turn, length)) for turn in (0, 1)]
    length = 257 if law is None else max(257, law.shortest_hit)
    for _ in range(3):
        number += 1
        found = [hits(length * bool(turn), length) for turn in range(6)] if burst_hits is None else burst_hits
        seen.sent += [sent(kinds.BURST, number, turn, length, cached) for turn, cached in enumerate(found)]
    if law is not None and burst_hits is None:
        together(seen, number, 6, *[hits(length, length)] * 4, length=length)
    seen.sent += [sent(kinds.SHARED, number + 1, 0, 4 * length, 0)]
    seen.sent += [
        sent(kinds.SHARED, number + 1 + tail, 0, 4 * length, hits(3 * length, 4 * length), matched=3 * length) for tail in (1, 2)
    ]
    for turn, salt in enumerate((kinds.NO_SALT, kinds.OWN_SALT, kinds.OWN_SALT, kinds.OTHER_SALT)):
        seen.sent.append(sent(kinds.SALTED, number + 4, turn, length, hits(length * (turn == 2), length), salt=salt))
    for purpose in (kinds.KEPT, kinds.TEXT, kinds.CHAT):
        number += 5
        seen.sent += [
            sent(purpose, number, turn, 600, hits(600 * turn, 600), at_s=3.0 * turn, prompt_ids=(5, 6, 7)) for turn in (0, 1)
        ]
    seen.tokenized = 600
    seen.streamed = Streamed(usage(33, 0))
    total = sum(one.length for one in seen.sent), sum(one.cached for one in seen.sent)
    seen.first_reading, seen.last_reading = CounterReading(0, 0, "lookups"), CounterReading(*total, "lookups")
    return seen


def together(seen, prompt, turn, *found, length=257):
    """A known prompt several times at once, of which each finds so much."""
    fields = {"at_s": 1.0, "seconds": 0.1, "counted": kinds.UNKNOWN}  # the counters' account is of all together
    group = tuple(sent(kinds.TOGETHER, prompt, turn + at, length, cached, **fields) for at, cached in enumerate(found))
    seen.sent += group
    seen.at_once.append(AtOnce(group))


def crowded(seen, num_foreign=200_000):
    """The same where others looked up so many tokens meanwhile: more than the pool holds."""
    seen.last_reading = replace(seen.last_reading, queries=seen.last_reading.queries + num_foreign)
    return seen


def with_times(seen, repeat_s, control_s):
    """Eight times of each side; the first request, which is repeated, is slow."""
    seen.sent.append(sent(kinds.TIMING, 900, 0, 1_025, 0, seconds=15.0))
    for turn in range(1, 9):
        seen.sent.append(sent(kinds.TIMING, 900, turn, 1_025, 1_024, seconds=repeat_s + turn * 1e-3))
        seen.sent.append(sent(kinds.TIMING, 900 + turn, 0, 1_025, 0, seconds=control_s + turn * 1e-3))
    return seen


def changed(seen, change, *purposes):
    """The same with each request of these purposes changed by a function."""
    seen.sent = [change(one) if not purposes or one.purpose in purposes else one for one in seen.sent]
    return seen


def asked_once_more(seen, *purposes):
    """The same with each prompt of these purposes sent once more, as its latest turn was."""
    for purpose in purposes:
        for turns in seen.turns_of(purpose):
            seen.sent.append(replace(turns[-1], turn=turns[-1].turn + 1, at_s=turns[-1].at_s + 3.0))
    return seen


def unreported(one, state=NO_DETAILS):
    """The request as a server without the flag reports it."""
    return replace(one, usage=Usage(None if state == ABSENT else one.length, None, None, state))


def behind(front):
    """A server behind a front of so many tokens that every prompt shares; the server alone counts."""
    seen = sight(replace(OTHER, unit_size=16), LAW)
    seen.sent = [one for one in seen.sent if one.purpose != kinds.SALTED]  # not asked of a server of unknown kind

    def fronted(one):
        length = one.length + front
        found = LAW.hits(front + (one.match or 0), length)
        return replace(one, num_ids=None, usage=usage(length, found), counted=kinds.UNKNOWN)

    seen = changed(seen, fronted)
    seen.form, seen.tokenized = "text", None
    seen.sent[0] = replace(seen.sent[0], usage=usage(seen.sent[0].length, 0))
    return seen
