"""Asker: sends one request of the probe and notes what each witness says of it.

The witnesses of a request: the reply's usage, the growth of the server's counters over it, SGLang's /generate, the time.
A request that is turned away is sent again a little later. One that fails is noted and the probe goes on; after several in a
row it gives up.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from datetime import datetime
from typing import Any, Callable, Mapping

from labs.probe.budget import ProbeBudget
from labs.probe.clock import Clock
from labs.probe.observation import (
    CHAT,
    KEPT,
    LADDER,
    NO_SALT,
    OTHER_SALT,
    OWN_SALT,
    STAIRCASE,
    TEXT,
    UNKNOWN,
    Observations,
    Sent,
    Streamed,
)
from labs.probe.patience import BUSY, with_patience
from labs.probe.prompt_source import Prompt, PromptSource
from labs.servers.metrics_page import MetricsPage
from labs.servers.prefix_counters import SERIES, CounterReading
from labs.servers.server_client import LimitReached, ServerClient, ServerRefused
from labs.servers.server_reply import ServerReply, Usage
from labs.targets.base import TargetError

COMPLETIONS, CHATS, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
GAUGE = "sglang:cache_hit_rate"
MAX_FAILURES_IN_A_ROW = 3
LAST_S = 1.0  # of the probe's time: a request that fails then was cut by it,
PATIENCE_S, PATIENCE = 5.0, 4.0  # unless it had waited longer than this, and than so many times what others took
SETTLE_S = 0.4  # counters lag the reply by an engine step
MAX_UNSETTLED = 3  # requests that were never counted: then no more is waited for any
COUNTED = (LADDER, STAIRCASE, KEPT)  # read the counters over these even where replies tell: two witnesses can be compared
TOO_LONG, NOT_THERE = (400, 413, 422), (404, 405)
MAX_READ_IDS, OWN_CHARACTERS = 4_096, 24  # of a front that is read; of our own text, by which its end is found
MAX_SHOWN_IDS = 1_100  # tokens of prompts whose ids are asked back; longer ones are only counted

Connect = Callable[[], ServerClient]


class GivenUp(TargetError):
    """The server failed too often in a row."""


class Asker:
    """Asks one server. What comes back is added to `observations`.

    connect   makes a client with connections of its own: behind a balancer of connections each may meet another replica
    """

    def __init__(
        self, connect: Connect, client: ServerClient, source: PromptSource, budget: ProbeBudget, observations: Observations
    ) -> None:
        self.source, self.budget, self.observations, self.client = source, budget, observations, client
        self._connect = connect
        self._facts = observations.facts
        # An own salt for this run, drawn anew each time: nobody else has it.
        self._salts = {OWN_SALT: f"labcli-{secrets.token_hex(8)}", OTHER_SALT: f"labcli-{secrets.token_hex(8)}"}
        self._turns: dict[int, int] = {}
        self._asks_ids = True
        self._is_native = False
        self._num_unsettled = 0
        self._previous = UNKNOWN  # reading on the probe's own connection
        self._latest: CounterReading | None = None  # taken after the last request: the next one's reading before
        self._num_failed = 0
        self.was_too_long = False  # whether what was refused last may have been so for its length

    def ask(
        self,
        purpose: str,
        prompt: Prompt,
        *,
        matched: int | None = None,
        salt: str = NO_SALT,
        alone: bool = False,
        may_refuse: bool = False,
    ) -> Sent | None:
        """Send a prompt. None when it failed, or was refused.

        matched     tokens of its front that were sent before, where that is neither all of a repeat nor none
        alone       on a connection of its own and with no reading of counters: nothing comes between this and the last
        may_refuse  a refusal is no failure: the prompt may be too long, or the salt unknown
        """
        body: dict[str, Any] = {"prompt": self.source.payload(prompt)}
        if self.observations.form == "chat":
            body = _message(self.source.as_text(prompt))
        if salt != NO_SALT:
            body["cache_salt"] = self._salts[salt]
        return self._send(purpose, prompt.number, prompt.num_ids, len(prompt.ids), body, matched, salt, alone, may_refuse)

    def ask_text(self, number: int, text: str) -> Sent | None:
        """Send a text as it is."""
        return self._send(TEXT, number, None, _num_words(text), {"prompt": text}, may_refuse=True)

    def ask_chat(self, number: int, text: str) -> Sent | None:
        """Send a text as a person's message. A server without chat is no failure."""
        return self._send(CHAT, number, None, _num_words(text), _message(text), may_refuse=True)

    def ask_streamed(self, prompt: Prompt) -> Streamed | None:
        """Send a prompt for a stream that ends with usage; None when that failed otherwise than by a refusal."""
        self.budget.take(len(prompt.ids))
        begin_s = time.perf_counter()
        is_chat = self.observations.form == "chat"
        path = CHATS if is_chat else COMPLETIONS
        body = _message(self.source.as_text(prompt)) if is_chat else {"prompt": self.source.payload(prompt)}
        body |= {**self._common(), "stream": True, "stream_options": {"include_usage": True}}

        def read() -> ServerReply:
            return ServerReply.of_events(self.client.stream(path, body), self.client.shown)

        try:
            streamed = Streamed(with_patience(read, self.budget, self._turned_away).usage)
        except LimitReached:
            raise
        except ServerRefused as error:
            streamed = Streamed(Usage(), str(error))
        except TargetError as error:
            self._check_patience(len(prompt.ids), time.perf_counter() - begin_s)
            self._failed(error)
            streamed = Streamed(Usage(), str(error))
        self.observations.streamed = streamed
        return streamed

    def read_clock(self, sent: Sent, own_text: str) -> None:
        """Note what the front of a request, if the server shows it, tells of now. The text itself is not kept."""
        if sent.prompt_ids is None:
            return
        body = {"model": self._facts.model, "tokens": list(sent.prompt_ids[:MAX_READ_IDS])}
        try:
            found = self.client.post_json("/detokenize", body)
        except TargetError:
            return
        text = found.get("prompt", found.get("text"))
        if isinstance(text, str) and text:
            front, *_ = text.partition(own_text[:OWN_CHARACTERS])
            self.observations.clocks[sent.purpose] = Clock.of(front, datetime.now())

    def use_native(self) -> None:
        """From now on ask SGLang's own /generate, which tells cached tokens without a flag."""
        self._is_native = True

    @property
    def is_native(self) -> bool:
        return self._is_native

    def read_counters(self, client: ServerClient | None = None) -> CounterReading:
        """The server's lifetime counts now; unknown when it has none. Keeps SGLang's gauge."""
        if not self._facts.has_counters:
            return UNKNOWN
        try:
            reply = (client or self.client).get("/metrics", timeout_s=10.0)
            page = MetricsPage.parse(reply.text, (*SERIES, GAUGE)) if reply.status_code == 200 else None
        except TargetError:
            page = None
        if page is None:
            return UNKNOWN
        self.observations.gauge = page.first(GAUGE)
        reading = CounterReading.of(page)
        if client is None and reading.is_known:
            earlier, self._previous = self._previous, reading
            has_fallen = reading.source == earlier.source and not reading.growth_since(earlier).is_known
            self.observations.num_falls += has_fallen
        return reading

    def reread_counters(self, times: int) -> None:
        """Read the counters on new connections, with nothing sent in between."""
        for _ in range(times if self._facts.has_counters else 0):
            client = self._connect()
            try:
                self.observations.rereadings.append(self.read_counters(client))
            finally:
                client.close()

    def _send(
        self,
        purpose: str,
        number: int,
        num_ids: int | None,
        size: int,
        body: Mapping[str, Any],
        matched: int | None = None,
        salt: str = NO_SALT,
        alone: bool = False,
        may_refuse: bool = False,
    ) -> Sent | None:
        self.budget.take(size)
        is_uncounted = alone or (purpose not in COUNTED and self.observations.known_by_usage)
        before = UNKNOWN if is_uncounted else self._latest or self.read_counters()
        self._latest = None  # of no use once something else was sent
        client = self._connect() if alone else self.client
        begin_s = time.perf_counter()
        try:
            reply, native, begin_s, end_s = with_patience(
                lambda: self._timed_reply(client, body, size), self.budget, self._turned_away
            )
        except LimitReached:
            raise
        except ServerRefused as error:
            if purpose != CHAT and error.status in NOT_THERE and not self.observations.sent and self.observations.form == "text":
                # No completions there: all that is asked goes to chat from now on.
                self.observations.form = "chat"
                return self._send(purpose, number, num_ids, size, _message(str(body["prompt"])), matched, salt, alone, may_refuse)
            if may_refuse and error.status in (*TOO_LONG, *(NOT_THERE if purpose == CHAT else ())):
                self._refused(purpose, size, error)
                return None
            self._failed(error)
            return None
        except TargetError as error:
            self._check_patience(size, time.perf_counter() - begin_s)
            self._failed(error)
            return None
        finally:
            if alone:
                client.close()
        self._num_failed = 0
        turn = self._turns.get(number, 0)
        self._turns[number] = turn + 1
        length = reply.usage.prompt_tokens or num_ids
        self.budget.found_larger((length or size) - size)
        if num_ids is None and reply.usage.prompt_tokens and salt == NO_SALT:
            self.source.learn("chat" if "messages" in body else "text", size, reply.usage.prompt_tokens)
        counted = UNKNOWN if is_uncounted else self._growth(before, length)
        sent = Sent(
            purpose, number, turn, num_ids, reply.usage, counted, native, end_s - begin_s, self.budget.at(begin_s), matched, salt,
            reply.prompt_token_ids,
        )  # fmt: skip
        self.observations.sent.append(sent)
        if sent.cached == 0 or not sent.turn:
            self.budget.learn_pace(length or size, sent.seconds)
        return sent

    def _timed_reply(
        self, client: ServerClient, body: Mapping[str, Any], size: int
    ) -> tuple[ServerReply, int | None, float, float]:
        """The reply, what /generate says it found, and when the request began and ended: one that was turned away takes no time."""
        begin_s = time.perf_counter()
        return (*self._reply(client, body, size), begin_s, time.perf_counter())

    def _reply(self, client: ServerClient, body: Mapping[str, Any], size: int) -> tuple[ServerReply, int | None]:
        """The reply, and what /generate says it found."""
        prompt = body.get("prompt")
        if self._is_native and "prompt" in body:
            return self._native_reply(client, prompt, body.get("cache_salt"))
        path = CHATS if "messages" in body else COMPLETIONS
        sent = {**self._common(), **body}
        if self._asks_ids and size <= MAX_SHOWN_IDS:
            try:
                return ServerReply.of_json(client.compute(path, {**sent, "return_token_ids": True}), 0.0, client.shown), None
            except ServerRefused as error:
                # Servers that check their fields strictly know no such field.
                if self._facts.kind != "openai" or error.status not in TOO_LONG:
                    raise
                self._asks_ids = False
        return ServerReply.of_json(client.compute(path, sent), 0.0, client.shown), None

    def _native_reply(self, client: ServerClient, prompt: Any, salt: Any) -> tuple[ServerReply, int | None]:
        body: dict[str, Any] = {"sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        body["text" if isinstance(prompt, str) else "input_ids"] = prompt
        if salt is not None:
            body["cache_salt"] = salt
        reply = ServerReply.of_generate(client.compute(GENERATE, body), 0.0, 0.0, client.shown)
        # Its usage is /generate's own: what completions report is another question.
        return replace(reply, usage=Usage(reply.usage.prompt_tokens)), reply.usage.cached_tokens

    def _common(self) -> dict[str, Any]:
        return {"model": self._facts.model, "max_tokens": 1, "temperature": 0}

    def _growth(self, before: CounterReading, length: int | None) -> CounterReading:
        """What the counters grew since; waits for the request to be counted, as long as earlier ones were."""
        if not before.is_known:
            return UNKNOWN
        wait_until_s = time.perf_counter() + (SETTLE_S if self._num_unsettled < MAX_UNSETTLED else 0.0)
        while True:
            self._latest = self.read_counters()
            growth = self._latest.growth_since(before)
            growth = growth if length is None else growth.without_checks(length)
            settled = growth.is_known and length is not None and growth.queries >= length
            if settled or time.perf_counter() >= wait_until_s:
                self._num_unsettled += not settled
                return growth
            time.sleep(0.02)

    def _check_patience(self, size: int, waited_s: float) -> None:
        """Raises LimitReached for a request that the probe's own end has cut before it was late: no failure of the server."""
        if self.budget.seconds_left < LAST_S and waited_s < max(PATIENCE_S, PATIENCE * self.budget.expected_s(size)):
            raise LimitReached(f"{self.budget.limits.max_seconds:,.0f} s passed")

    def _refused(self, purpose: str, size: int, error: ServerRefused) -> None:
        self._num_failed = 0
        self.was_too_long = error.status in TOO_LONG
        if purpose == CHAT:
            self.observations.refuses_chat = str(error)
        elif purpose == LADDER:
            tokens = size if self.source.form != "text" else self.source.tokens_of(size)
            self.observations.longest_refused = min(tokens, self.observations.longest_refused or tokens)

    def _turned_away(self) -> None:
        self.observations.num_turned_away += 1

    def _failed(self, error: TargetError) -> None:
        self.observations.failures.append(str(error))
        self.observations.num_busy_failures += isinstance(error, ServerRefused) and error.status in BUSY
        self._num_failed += 1
        if self._num_failed >= MAX_FAILURES_IN_A_ROW:
            raise GivenUp(str(error))


def _message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _num_words(text: str) -> int:
    return text.count(" ") + 1
