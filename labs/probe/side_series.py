"""What else the probe asks: texts and chats with a pause between, times, and with --stress the pool.

spaced    a prompt, a text and a chat message at the beginning and at the end: a clock in front of them differs by then,
          and the prompt shows that what is so old is still kept
times     repeats and prompts never sent before, of one length, in random order, after a warm-up
pool      a prompt, others of 1, 2, 4, … thousand tokens, the prompt again: until it is lost
"""

from __future__ import annotations

import random
import time
from datetime import datetime

from labs.probe.asker import Asker
from labs.probe.budget import TIMED_SHARE, OutOfTime
from labs.probe.clock import Clock
from labs.probe.observation import Rung
from labs.probe.repeat_series import RepeatSeries
from labs.probe.sent import CHAT, KEPT, POOL, TEXT, TIMING, Sent
from labs.probe.server_tokenizer import ServerTokenizer

MIN_PAUSE_S = 2.1  # between a text and its repeat: more than a clock of seconds needs
LONG_PAUSE_S = 61.0  # for a clock of minutes, where there is time and the server does not show what stands in front
LONG_FROM_S = 90.0  # of --max-seconds
SHORT_WORDS, LONG_WORDS = 20, 100  # of two texts that tell what a word costs
MAX_READ_IDS, OWN_CHARACTERS = 4_096, 24  # of a front that is read; of our own text, by which its end is found
TIMED_LENGTH = 1_025
NUM_TIMED = 8  # of each side: with fewer even a perfect order may be chance
FIRST_BETWEEN = 1_024  # tokens on the first rung
MIN_PROMPT, MAX_PROMPT = 257, 2_049  # tokens of a prompt on a rung


class SpacedSeries:
    """A prompt, a text and a chat message, sent at the beginning and at the end."""

    def __init__(self, asker: Asker, series: RepeatSeries) -> None:
        """series: tells how long a prompt must be to find something, and how long it may be."""
        self._asker = asker
        self._tokenizer = ServerTokenizer(asker.client, asker.observations.facts.model)
        if asker.observations.facts.has_tokenizer:
            self._tokenize_words()
        length = series.message_length
        self._prompt = asker.source.fresh(min(series.telling, series.most))
        self._text, self._message = (asker.source.text(length) for _ in range(2))
        self._text_number, self._message_number = asker.source.number(), asker.source.number()
        self._sent_s = time.perf_counter()

    def begin(self) -> None:
        """The first time, and what the server's tokenizer says of the text. The prompt first: it is forgotten first."""
        self._asker.ask(KEPT, self._prompt)
        self._send(is_first=True)
        if self._asker.observations.facts.has_tokenizer:
            self._tokenize()

    def end(self) -> None:
        """The second time; where that falls short a third time, since one miss may be anything's."""
        seen = self._asker.observations
        is_hidden = any(seen.of(purpose) and purpose not in seen.clocks for purpose in (TEXT, CHAT))
        sent = self._again(LONG_PAUSE_S if is_hidden and self._asker.budget.limits.max_seconds > LONG_FROM_S else MIN_PAUSE_S)
        if any(seen.falls_short(one) for one in sent):
            self._again(MIN_PAUSE_S)

    def _again(self, pause_s: float) -> list[Sent]:
        """All three, so long after they were sent last; of the time that is left some is kept for other questions."""
        left_s = self._asker.budget.seconds_left
        time.sleep(max(0.0, min(pause_s - (time.perf_counter() - self._sent_s), left_s / 2)))
        sent = [*self._send(), self._asker.ask(KEPT, self._prompt)]
        return [one for one in sent if one is not None]

    def _send(self, is_first: bool = False) -> list[Sent | None]:
        asker, seen = self._asker, self._asker.observations
        self._sent_s, sent = time.perf_counter(), []
        if seen.form != "chat":
            found = asker.ask_text(self._text_number, self._text)
            if found is None and is_first and asker.was_too_long:
                self._text = _half(self._text)
                found = asker.ask_text(self._text_number, self._text)
            sent.append(found)
        if not seen.refuses_chat:
            found = asker.ask_chat(self._message_number, self._message)
            if found is None and is_first and asker.was_too_long:
                self._message, seen.refuses_chat = _half(self._message), ""
                found = asker.ask_chat(self._message_number, self._message)
            sent.append(found)
        for one in sent if is_first else ():
            if one is not None:
                self._read_clock(one, self._text if one.purpose == TEXT else self._message)
        return sent

    def _read_clock(self, sent: Sent, own_text: str) -> None:
        """Note what the front of a request, if the server shows it, tells of now. The text itself is not kept."""
        if sent.prompt_ids is None:
            return
        text = self._tokenizer.text_of(sent.prompt_ids[:MAX_READ_IDS])
        if text is not None:
            front, *_ = text.partition(own_text[:OWN_CHARACTERS])
            self._asker.observations.clocks[sent.purpose] = Clock.of(front, datetime.now())

    def _tokenize_words(self) -> None:
        source = self._asker.source
        texts = [source.words(number) for number in (SHORT_WORDS, LONG_WORDS)]
        for text, ids in zip(texts, self._tokenizer.ids_of(*texts) or ()):
            source.learn("tokenizer", text.count(" ") + 1, len(ids))

    def _tokenize(self) -> None:
        found = self._tokenizer.ids_of(self._text, "parcel", "seven days")
        if found is not None:
            seen, openings = self._asker.observations, {ids[0] for ids in found}
            seen.tokenized = len(found[0])
            # Three texts that begin differently, with one id in front of all: the tokenizer put it there.
            seen.opening_id = openings.pop() if len(openings) == 1 and all(len(ids) > 1 for ids in found) else None


def _half(text: str) -> str:
    words = text.split(" ")
    return " ".join(words[: max(2, len(words) // 2)])


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
