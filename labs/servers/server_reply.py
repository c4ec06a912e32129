"""ServerReply: what a completion's reply says, read without trust: a number, a zero, or nothing at all.

Three states, never mixed: `cached_tokens` is a number above zero, zero, or None (unknown), because a server that does not
report is not a server that found nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, Mapping

from labs.servers.server_client import StreamEvent
from labs.targets.base import TargetError

ABSENT = "no usage"  # the reply has none
NO_DETAILS = "no prompt_tokens_details"  # it is null, or not there
REPORTED = "reported"
MAX_COUNT = 2**40  # tokens: no request has as many


@dataclass(frozen=True)
class Usage:
    """Tokens as the server counts them; None is unknown."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    state: str = ABSENT  # ABSENT, NO_DETAILS or REPORTED

    @classmethod
    def of(cls, usage: Any) -> Usage:
        """From a reply's `usage`. A value that cannot be (negative, above the prompt) is unknown, not clamped."""
        if not isinstance(usage, Mapping):
            return cls()
        prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
        return cls(prompt, completion, cached, NO_DETAILS if cached is None else REPORTED)

    @property
    def is_impossible(self) -> bool:
        """More cached than the prompt has."""
        return self.cached_tokens is not None and self.prompt_tokens is not None and self.cached_tokens > self.prompt_tokens


@dataclass(frozen=True)
class ServerReply:
    """One completion, as its server reports it."""

    text: str
    finish_reason: str | None
    usage: Usage
    ttft_s: float  # to the first chunk with output; of a reply that is not streamed, the whole time
    e2e_s: float
    output_token_ids: tuple[int, ...] | None = None  # None: the server does not tell
    prompt_token_ids: tuple[int, ...] | None = None
    top_logprob_gaps: tuple[float, ...] = ()
    reply_id: str | None = None  # its name; a reply that comes back under the same one was not made anew

    @classmethod
    def of_json(cls, body: Mapping[str, Any], e2e_s: float, shown: str) -> ServerReply:
        """From a reply that came at once. Raises TargetError when it is no completion."""
        choice = _choice(body, shown)
        if choice is None:
            raise TargetError(f"{shown} answered with a completion that has no choices")
        return cls(
            _text(choice),
            _reason(choice),
            Usage.of(body.get("usage")),
            e2e_s,
            e2e_s,
            _ids(choice.get("token_ids")),
            _ids(choice.get("prompt_token_ids") or body.get("prompt_token_ids")),
            tuple(_gaps(choice)),
            _name(body.get("id")),
        )

    @classmethod
    def of_generate(cls, body: Mapping[str, Any], ttft_s: float, e2e_s: float, shown: str) -> ServerReply:
        """From SGLang's own /generate, whose meta_info tells the cached tokens whatever its flags. Raises TargetError."""
        meta = body.get("meta_info")
        if not isinstance(meta, Mapping):
            raise TargetError(f"{shown} answered /generate without meta_info")
        counts = {name: meta.get(name) for name in ("prompt_tokens", "completion_tokens")}
        usage = Usage.of({**counts, "prompt_tokens_details": {"cached_tokens": meta.get("cached_tokens")}})
        reason = meta.get("finish_reason")
        reason = reason.get("type") if isinstance(reason, Mapping) else reason
        tops = meta.get("output_top_logprobs")
        gaps = tuple(_gaps_of_triples(tops if isinstance(tops, list) else ()))
        reason = reason if isinstance(reason, str) else None
        ids, name = _ids(body.get("output_ids")), _name(meta.get("id"))
        return cls(_text(body), reason, usage, ttft_s, e2e_s, ids, top_logprob_gaps=gaps, reply_id=name)

    @classmethod
    def of_generate_events(cls, events: Iterable[StreamEvent], shown: str) -> ServerReply:
        """From /generate as a stream: each event holds all that was generated so far. Raises TargetError."""
        ttft_s, at_s, last = None, 0.0, None
        for event in events:
            if event.data is None:
                break
            at_s, last = event.at_s, event.data
            ttft_s = at_s if ttft_s is None else ttft_s
        if last is None:
            raise TargetError(f"{shown} streamed a reply to /generate without any output")
        return cls.of_generate(last, at_s if ttft_s is None else ttft_s, at_s, shown)

    @classmethod
    def of_events(cls, events: Iterable[StreamEvent], shown: str) -> ServerReply:
        """From a stream. Raises TargetError when it holds no choice or never says why it ended."""
        texts: list[str] = []
        gaps: list[float] = []
        output_ids: list[int] | None = None
        prompt_ids: tuple[int, ...] | None = None
        reason: str | None = None
        usage, ttft_s, at_s, has_choice = Usage(), None, 0.0, False
        for event in events:
            at_s = event.at_s
            if event.data is None:
                break
            found = Usage.of(event.data.get("usage"))
            usage = found if found.state != ABSENT else usage
            choice = _choice(event.data, shown)
            if choice is None:
                continue
            has_choice = True
            prompt_ids = _ids(choice.get("prompt_token_ids") or event.data.get("prompt_token_ids")) or prompt_ids
            text, ids = _text(choice), _ids(choice.get("token_ids"))
            gaps += _gaps(choice)
            reason = _reason(choice) or reason
            # A chat's first chunk only names the role: no token is there yet.
            if (text or ids or reason) and ttft_s is None:
                ttft_s = at_s
            texts.append(text)
            if ids is not None:
                output_ids = [*(output_ids or ()), *ids]
        if not has_choice or reason is None:
            raise TargetError(f"{shown} streamed a completion without {'a finish_reason' if has_choice else 'any choice'}")
        ids = None if output_ids is None else tuple(output_ids)
        return cls("".join(texts), reason, usage, at_s if ttft_s is None else ttft_s, at_s, ids, prompt_ids, tuple(gaps))


def _choice(body: Mapping[str, Any], shown: str) -> Mapping[str, Any] | None:
    choices = body.get("choices")
    if choices in (None, []):
        return None
    if not isinstance(choices, list) or not isinstance(choices[0], Mapping):
        raise TargetError(f"{shown} answered with choices that are none")
    return choices[0]


def _text(choice: Mapping[str, Any]) -> str:
    for part in (choice, choice.get("message"), choice.get("delta")):
        if isinstance(part, Mapping):
            for name in ("text", "content"):
                if isinstance(part.get(name), str):
                    return part[name]
    return ""


def _reason(choice: Mapping[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    return reason if isinstance(reason, str) else None


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _gaps(choice: Mapping[str, Any]) -> Iterable[float]:
    """Best minus second-best log-probability of each output token, where `logprobs` has them."""
    logprobs = choice.get("logprobs")
    tops = logprobs.get("top_logprobs") if isinstance(logprobs, Mapping) else None
    for top in tops if isinstance(tops, list) else ():
        values = sorted(filter(_is_logprob, top.values()), reverse=True) if isinstance(top, Mapping) else []
        if len(values) > 1:
            yield values[0] - values[1]


def _gaps_of_triples(tops: Iterable[Any]) -> Iterable[float]:
    """The same of SGLang's own lists: for each output token some [logprob, id, text]."""
    for top in tops:
        entries = top if isinstance(top, list) else []
        values = [one[0] for one in entries if isinstance(one, list) and one and _is_logprob(one[0])]
        if len(values) > 1:
            best, second = sorted(values, reverse=True)[:2]
            yield best - second


def _is_logprob(value: Any) -> bool:
    """A number; not NaN, no infinity, and none that a float cannot hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9


def _count(value: Any) -> int | None:
    """Tokens; None for what cannot be a number of them."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT else None


def _ids(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        return None
    return tuple(value)
