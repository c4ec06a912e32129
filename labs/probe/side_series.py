"""What else the probe asks: texts and chats with a pause between, a stream, times, and with --stress the pool.

spaced    a prompt, a text and a chat message at the beginning and at the end: a clock in front of them differs by then,
          and the prompt shows that what is so old is still kept
times     repeats and prompts never sent before, of one length, in random order, after a warm-up
pool      a prompt, others of 1, 2, 4, … thousand tokens, the prompt again: until it is lost
"""

from __future__ import annotations

import random
import time

from labs.probe.asker import Asker
from labs.probe.budget import OutOfTime
from labs.probe.observation import KEPT, POOL, TIMING, Rung
from labs.targets.base import TargetError

MIN_PAUSE_S = 2.1  # between a text and its repeat: more than a clock of seconds needs
MAX_TEXT = 2_500  # tokens of a text
TIMED_LENGTH = 1_025
NUM_TIMED = 8  # of each side: with fewer even a perfect order may be chance
TIMED_SHARE = 0.8  # of the seconds allowed, after which no more times are taken
FIRST_BETWEEN = 1_024  # tokens on the first rung
MIN_PROMPT, MAX_PROMPT = 257, 2_049  # tokens of a prompt on a rung


class SpacedSeries:
    """A prompt, a text and a chat message, sent at the beginning and at the end."""

    def __init__(self, asker: Asker, telling: int, most: int) -> None:
        """telling: tokens of a prompt whose repeat must find something, `most` those of the longest that may be sent."""
        self._asker = asker
        if asker.observations.facts.has_tokenizer:
            self._tokenize_words()
        length = min(2 * telling + 32, most, MAX_TEXT)
        self._prompt = asker.source.fresh(min(telling, most))
        self._text, self._message = (asker.source.text(length) for _ in range(2))
        self._text_number, self._message_number = asker.source.number(), asker.source.number()
        self._begin_s = time.perf_counter()

    def begin(self) -> None:
        """The first time, and what the server's tokenizer says of the text. The prompt first: it is forgotten first."""
        self._begin_s = time.perf_counter()
        self._asker.ask(KEPT, self._prompt)
        self._send()
        if self._asker.observations.facts.has_tokenizer:
            self._tokenize()

    def end(self) -> None:
        """The second time."""
        pause_s = MIN_PAUSE_S - (time.perf_counter() - self._begin_s)
        time.sleep(max(0.0, min(pause_s, self._asker.budget.seconds_left)))
        self._send()
        self._asker.ask(KEPT, self._prompt)

    def _send(self) -> None:
        seen = self._asker.observations
        if seen.form != "chat":
            self._asker.ask_text(self._text_number, self._text)
        if not seen.refuses_chat:
            self._asker.ask_chat(self._message_number, self._message)

    def _tokenize_words(self) -> None:
        text = self._asker.source.text(100)
        (ids,) = self._ids_of(text) or ([],)
        if ids:
            self._asker.source.learn(text.count(" ") + 1, len(ids))

    def _tokenize(self) -> None:
        found = self._ids_of(self._text, "parcel", "seven days")
        if found is not None:
            seen, openings = self._asker.observations, {ids[0] for ids in found}
            seen.tokenized = len(found[0])
            # Three texts that begin differently, with one id in front of all: the tokenizer put it there.
            seen.opening_id = openings.pop() if len(openings) == 1 and all(len(ids) > 1 for ids in found) else None

    def _ids_of(self, *texts: str) -> list[list[int]] | None:
        """Each text's ids by the server's tokenizer; None when it does not give all."""
        client, model = self._asker.client, self._asker.observations.facts.model
        try:
            found = [client.post_json("/tokenize", {"model": model, "prompt": text}).get("tokens") for text in texts]
        except TargetError:
            return None
        is_whole = all(isinstance(ids, list) and ids and all(type(one) is int for one in ids) for ids in found)
        return found if is_whole else None


def take_times(asker: Asker, telling: int, most: int, rng: random.Random) -> None:
    """Times of repeats and of new prompts; the server is warm by now, and the order gives neither side an advantage."""
    length = _timed_length(asker, min(telling, most), min(max(TIMED_LENGTH, telling), most))
    known = asker.source.fresh(length)
    asker.ask(TIMING, known)
    sides = [True, False] * NUM_TIMED
    rng.shuffle(sides)
    for is_repeat in sides:
        if asker.budget.seconds > TIMED_SHARE * asker.budget.limits.max_seconds:
            return
        asker.ask(TIMING, known if is_repeat else asker.source.fresh(length))


def _timed_length(asker: Asker, shortest: int, length: int) -> int:
    """Tokens of a timed prompt: as many as the time left allows for both sides, repeats counted as half a new one."""
    limits = asker.budget.limits
    left_s = TIMED_SHARE * limits.max_seconds - asker.budget.seconds
    while 1.5 * NUM_TIMED * asker.budget.expected_s(length) > left_s:
        if length <= shortest:
            raise OutOfTime(f"{limits.max_seconds:,.0f} s are too few for all questions at this server's pace")
        length = max(shortest, length // 2)
    return length


def fill_pool(asker: Asker, most: int) -> None:
    """Rungs of ever more tokens between a prompt and its repeat, until the repeat finds nothing."""
    seen = asker.observations
    length = min(most, MAX_PROMPT, max(MIN_PROMPT, 2 * (seen.unit or 1) + 1))
    between = FIRST_BETWEEN
    while True:
        prompt = asker.source.fresh(length)
        asker.ask(POOL, prompt)
        num_sent = 0
        while num_sent < between:
            part = min(most, MAX_PROMPT, max(between - num_sent, 2))
            asker.ask(POOL, asker.source.fresh(part))
            num_sent += part
        sent = asker.ask(POOL, prompt)
        if sent is None or sent.cached is None:
            return
        seen.rungs.append(Rung(num_sent, length, sent.cached))
        if not sent.cached:
            return
        between *= 2
