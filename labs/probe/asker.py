"""Asker: sends one request of the probe and notes what each witness says of it.

    budget ─▶ counters before ─▶ endpoint, again a little later while it is busy ─▶ counters after ─▶ Sent

A request that fails is noted and the probe goes on; after several in a row it gives up.
"""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Mapping

from labs.probe.at_once import AtOnce
from labs.probe.budget import ProbeBudget
from labs.probe.counter_reader import CounterReader
from labs.probe.endpoints import NOT_THERE, TOO_LONG, Answer, Endpoints, messages_of
from labs.probe.observation import Observations, Streamed
from labs.probe.patience import BUSY, with_patience
from labs.probe.prompt_source import Prompt, PromptSource
from labs.probe.sent import CHAT, KEPT, LADDER, NO_SALT, OTHER_SALT, OWN, OWN_SALT, STAIRCASE, TEXT, TOGETHER, UNKNOWN, Sent
from labs.servers.prefix_counters import CounterReading
from labs.servers.send_together import send_together
from labs.servers.server_client import LimitReached, ServerClient, ServerRefused
from labs.servers.server_reply import Usage
from labs.targets.base import TargetError, TargetUnavailable

MAX_FAILURES_IN_A_ROW = 3
LAST_S = 1.0  # of the probe's time: a request that fails then was cut by it,
PATIENCE_S, PATIENCE = 5.0, 4.0  # unless it had waited longer than this, and than so many times what others took
START_S = 1.0  # that one of several at once waits for the others at most
ABREAST_TOKENS = 16  # of output, so that requests that begin together are under way together
COUNTED = (LADDER, STAIRCASE, OWN, KEPT)  # read the counters over these even where replies tell: two witnesses can be compared

Connect = Callable[[], ServerClient]


class GivenUp(TargetError):
    """The server failed too often in a row."""


@dataclass(frozen=True)
class Question:
    """One request before it is sent."""

    purpose: str
    number: int  # the prompt's
    num_ids: int | None  # tokens; None where the server alone counts them
    size: int  # tokens, or words where those are not known
    body: Mapping[str, Any] = field(repr=False)  # holds the prompt, and perhaps a salt
    matched: int | None = None
    salt: str = NO_SALT
    alone: bool = False
    may_refuse: bool = False
    most: int = 0  # tokens at most, of a text that is sent as it is


class Asker:
    """Asks one server. What comes back is added to `observations`.

    connect   makes a client with connections of its own: behind a balancer of connections each may meet another replica
    """

    def __init__(
        self, connect: Connect, client: ServerClient, source: PromptSource, budget: ProbeBudget, observations: Observations
    ) -> None:
        self.source, self.budget, self.observations, self.client = source, budget, observations, client
        self.endpoints, self.counters = Endpoints(observations.facts), CounterReader(client, observations)
        self._connect = connect
        # An own salt for this run, drawn anew each time: nobody else has it.
        self._salts = {OWN_SALT: f"labcli-{secrets.token_hex(8)}", OTHER_SALT: f"labcli-{secrets.token_hex(8)}"}
        self._turns: dict[int, int] = {}
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
        alone       on a connection of its own, and counters are read on that one: it may lead to another replica
        may_refuse  a refusal is no failure: the prompt may be too long, or the salt unknown
        """
        body = self._salted(self._body(prompt), salt)
        size = len(prompt.ids)
        return self._send(Question(purpose, prompt.number, prompt.num_ids, size, body, matched, salt, alone, may_refuse))

    def ask_text(self, number: int, text: str) -> Sent | None:
        """Send a text as it is."""
        most = self.source.most_of(text)
        return self._send(Question(TEXT, number, None, _num_words(text), {"prompt": text}, may_refuse=True, most=most))

    def ask_chat(self, number: int, text: str, *, purpose: str = CHAT, salt: str = NO_SALT) -> Sent | None:
        """Send a text as a person's message. A server without chat is no failure."""
        body = self._salted(messages_of(text), salt)
        most = self.source.most_of(text)
        return self._send(Question(purpose, number, None, _num_words(text), body, salt=salt, may_refuse=True, most=most))

    def ask_streamed(self, prompt: Prompt) -> None:
        """Send a prompt for a stream that ends with usage. A refusal is no failure."""
        self.budget.take(len(prompt.ids))
        body, begin_s = self._body(prompt), time.perf_counter()
        try:
            usage = with_patience(lambda: self.endpoints.streamed_usage(self.client, body), self.budget, self._turned_away)
            streamed = Streamed(usage)
        except LimitReached:
            raise
        except ServerRefused as error:
            streamed = Streamed(Usage(), str(error))
        except TargetError as error:
            self._check_patience(len(prompt.ids), time.perf_counter() - begin_s)
            self._failed(error)
            streamed = Streamed(Usage(), str(error))
        self.observations.streamed = streamed

    def ask_at_once(self, prompt: Prompt, times: int) -> None:
        """Send a prompt that is known by now so many times at once, each on a connection of its own.

        What is turned away is left out: a server need not take several of one client. What fails is noted too.
        """
        size = len(prompt.ids)
        self.budget.take(times * size, times)
        body = {**self._body(prompt), "max_tokens": self._abreast_tokens(prompt)}
        before = self.counters.before(not self.observations.known_by_usage)
        try:
            ended = self._ended_at_once(body, size, times)
        except KeyboardInterrupt:
            self._cut(prompt.num_ids, size, times)
            raise
        answers = [one for one in ended if isinstance(one, Answer)]
        self._cut(prompt.num_ids, size, sum(isinstance(one, LimitReached) for one in ended))
        self.observations.failures += [str(one) for one in ended if self._is_failure(one)]
        lengths = [one.reply.usage.prompt_tokens or prompt.num_ids for one in answers]
        counted = self.counters.growth(before, None if None in lengths else sum(lengths))
        question = Question(TOGETHER, prompt.number, prompt.num_ids, size, body)
        sent = [self._noted(question, one, UNKNOWN) for one in answers]
        self.observations.at_once.append(AtOnce(tuple(sent), counted))

    def _abreast_tokens(self, prompt: Prompt) -> int:
        """Of output; fewer where a request may not have so many behind this prompt: SGLang refuses it then."""
        most = self.observations.facts.max_model_len
        lengths = [one.length or 0 for one in self.observations.sent if one.prompt == prompt.number]
        length = max(lengths, default=0) or len(prompt.ids)
        return ABREAST_TOKENS if most is None else max(1, min(ABREAST_TOKENS, most - length - 1))

    def _is_failure(self, ended: Answer | TargetError) -> bool:
        """Whether the server failed, and was not busy, took no such request, nor was cut short by the probe's own end."""
        is_cut = isinstance(ended, LimitReached) or self.budget.seconds_left < LAST_S
        is_refused = isinstance(ended, ServerRefused) and ended.status in (*BUSY, *TOO_LONG)
        return isinstance(ended, TargetError) and not is_cut and not is_refused

    def _ended_at_once(self, body: Mapping[str, Any], size: int, times: int) -> list[Answer | TargetError]:
        clients, start = [self._connect() for _ in range(times)], threading.Barrier(times)

        def send(client: ServerClient, stop: threading.Event) -> Answer | TargetError:
            with suppress(threading.BrokenBarrierError):
                start.wait(START_S)  # a quick server would have answered the first before the last thread began
            try:
                return self.endpoints.answer(client, body, size)
            except TargetError as error:
                return error

        try:
            return send_together(clients, send, times)
        finally:
            for client in clients:
                client.close()

    def reread_counters(self, times: int) -> None:
        """Read the counters on new connections, with nothing sent in between."""
        self.counters.reread(self._connect, times)

    def _salted(self, body: dict[str, Any], salt: str) -> dict[str, Any]:
        return body if salt == NO_SALT else {**body, "cache_salt": self._salts[salt]}

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        if self.observations.form == "chat":
            return messages_of(self.source.as_text(prompt))
        return {"prompt": self.source.payload(prompt)}

    def _send(self, question: Question) -> Sent | None:
        self.budget.take(question.size, most=question.most)
        num_sent = len(self.observations.sent)
        try:
            return self._answered(question)
        except (LimitReached, KeyboardInterrupt):
            if len(self.observations.sent) == num_sent:
                self._cut(question.num_ids, question.size)
            raise

    def _cut(self, num_ids: int | None, size: int, times: int = 1) -> None:
        """Note the tokens of requests that were cut: the server may have counted them."""
        length = self.source.num_front + (self.source.tokens_of(size) if num_ids is None else num_ids)
        self.observations.num_cut_tokens += times * length

    def _answered(self, question: Question) -> Sent | None:
        tells = self.observations.known_by_usage and question.purpose not in COUNTED
        client = self._connect() if question.alone else self.client
        before, begin_s = self.counters.before(not tells, client), time.perf_counter()
        try:
            answer = with_patience(
                lambda: self.endpoints.answer(client, question.body, question.size), self.budget, self._turned_away
            )
        except LimitReached:
            raise
        except ServerRefused as error:
            if self._has_no_generate(question, error):
                self.endpoints.leave_native()
                return None
            if self._has_no_completions(question, error):
                self.observations.form = "chat"  # all that is asked goes there from now on
                return self._send(replace(question, body=messages_of(str(question.body["prompt"]))))
            self._refused(question, error)
            return None
        except TargetError as error:
            if self._has_no_generate(question, error):
                self.endpoints.leave_native()
                return None
            self._check_patience(question.size, time.perf_counter() - begin_s)
            self._failed(error)
            return None
        else:
            length = answer.reply.usage.prompt_tokens or question.num_ids
            found = answer.reply.usage.cached_tokens if answer.native_cached is None else answer.native_cached
            return self._noted(question, answer, self.counters.growth(before, length, client, found))
        finally:
            if question.alone:
                client.close()

    def _noted(self, question: Question, answer: Answer, counted: CounterReading) -> Sent:
        """Add an answered request to the observations, and learn from it how long prompts are and take."""
        self._num_failed = 0
        number, num_ids, size, reply = question.number, question.num_ids, question.size, answer.reply
        turn = self._turns.get(number, 0)
        self._turns[number] = turn + 1
        length = reply.usage.prompt_tokens or num_ids
        self.budget.found_larger((length or size) - size)
        if num_ids is None and reply.usage.prompt_tokens and question.salt == NO_SALT:
            self.source.learn("chat" if "messages" in question.body else "text", size, reply.usage.prompt_tokens)
        sent = Sent(
            question.purpose,
            number,
            turn,
            num_ids,
            reply.usage,
            counted=counted,
            native_cached=answer.native_cached,
            seconds=answer.end_s - answer.begin_s,
            at_s=self.budget.at(answer.begin_s),
            matched=question.matched,
            salt=question.salt,
            prompt_ids=reply.prompt_token_ids,
            reply_id=reply.reply_id,
        )
        self.observations.sent.append(sent)
        if sent.cached == 0 or not sent.turn:
            self.budget.learn_pace(length or size, sent.seconds)
        return sent

    def _check_patience(self, size: int, waited_s: float) -> None:
        """Raises LimitReached for a request that the probe's own end has cut before it was late: no failure of the server."""
        if self.budget.seconds_left < LAST_S and waited_s < max(PATIENCE_S, PATIENCE * self.budget.expected_s(size)):
            raise LimitReached(f"{self.budget.limits.max_seconds:,.0f} s passed")

    def _has_no_completions(self, question: Question, error: ServerRefused) -> bool:
        is_first = not self.observations.sent and self.observations.form == "text"
        return is_first and question.purpose != CHAT and error.status in NOT_THERE

    def _has_no_generate(self, question: Question, error: TargetError) -> bool:
        """Whether /generate takes nothing, or nothing of us, though completions have just taken as long a prompt."""
        is_tried = self.endpoints.is_native and "prompt" in question.body
        is_refused = isinstance(error, ServerRefused) and error.status in (*NOT_THERE, *TOO_LONG)
        is_closed = isinstance(error, TargetUnavailable)  # 401 and 403 among them
        return is_tried and (is_refused or is_closed) and all(one.native_cached is None for one in self.observations.sent)

    def _refused(self, question: Question, error: ServerRefused) -> None:
        """Note what a refusal tells; one that was not to be expected is a failure."""
        if not question.may_refuse or error.status not in (*TOO_LONG, *(NOT_THERE if question.purpose == CHAT else ())):
            self._failed(error)
            return
        self._num_failed = 0
        self.was_too_long = error.status in TOO_LONG
        if question.purpose == CHAT:
            self.observations.refuses_chat = str(error)
        elif question.purpose == LADDER:
            tokens = question.size if self.source.form != "text" else self.source.tokens_of(question.size)
            self.observations.longest_refused = min(tokens, self.observations.longest_refused or tokens)

    def _turned_away(self) -> None:
        self.observations.num_turned_away += 1

    def _failed(self, error: TargetError) -> None:
        self.observations.failures.append(str(error))
        self.observations.num_busy_failures += isinstance(error, ServerRefused) and error.status in BUSY
        self._num_failed += 1
        if self._num_failed >= MAX_FAILURES_IN_A_ROW:
            raise GivenUp(str(error))


def _num_words(text: str) -> int:
    return text.count(" ") + 1
