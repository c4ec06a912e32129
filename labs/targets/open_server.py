"""OpenServer: the targets of a run on a server. Its one cache is found out once; each target is that cache, as it is.

    find facts ─▶ find the form of prompts ─▶ find the way to send ─▶ unit: told, or measured by repeats ─▶ targets

Labs cannot run where caching is off or nothing tells cached tokens: then opening says which flag changes that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Sequence

import httpx

from labs.targets.base import Completion, ServedCache, Target, TargetError, TargetInfo, TargetUnavailable
from labs.targets.openai_http import OpenAIHttpTarget
from labs.targets.server_facts import ServerFacts
from labs.targets.server_link import ServerLink
from labs.targets.server_reply import REPORTED
from labs.targets.server_run import ServerRun
from labs.targets.unit_ladder import MeasuredUnit, measure_unit

ASSUMED_LENGTH = 8_192  # tokens of a prompt, where a server tells no limit


class OpenServer:
    """Opens targets on one server, which all share its cache. Raises TargetUnavailable when labs cannot run there.

    facts      what answers there, the unit and a drafter found by measuring included
    transport  httpx's, for tests
    """

    def __init__(self, run: ServerRun, transport: httpx.BaseTransport | None = None) -> None:
        self._link = ServerLink(run, transport)
        try:
            self.facts: ServerFacts = self._with_unit(self._link.facts)
            self._check_witnesses()
        except BaseException:
            self._link.client.close()
            raise
        self.kind = self.facts.kind
        is_radix = _is_radix(self.facts)
        name = {"vllm": "block", "sglang": "page"}.get(self.kind, "unit")
        self.served = ServedCache(
            title=f"{self.facts.title}, {name} {self.facts.unit_size}",
            prefix_cache="radix" if is_radix else "hash",
            unit_size=self.facts.unit_size,
            has_drafter=bool(self.facts.has_drafter),
            publishes_at_allocation=not is_radix,
            num_front=self._link.form.num_front,
        )
        self._note_witnesses()
        self._link.notes.keep()

    def __call__(self, **engine_fields: Any) -> Target:
        """A target. Engine fields must be what is served: nobody can change it from outside. Raises TargetError."""
        for name, value in engine_fields.items():
            self._check_field(name, value)
        return OpenAIHttpTarget(self._link, self._info(self.facts))

    def notes(self) -> tuple[str, ...]:
        return self._link.notes.take()

    def close(self) -> None:
        """Close the connection."""
        self._link.client.close()

    def _with_unit(self, facts: ServerFacts) -> ServerFacts:
        """The facts with the unit and the drafter that repeats show; what the server tells of itself is only checked."""
        link, usages = self._link, []
        provisional = OpenAIHttpTarget(link, self._info(replace(facts, unit_size=facts.unit_size or 1)))

        def complete(prompt: Sequence[int]) -> Completion:
            completion = provisional.complete(prompt)
            usages.append(completion.evidence.usage)
            return completion

        told = facts.unit_size
        hits = None if told is None else _repeated(complete, link, 2 * told + 1, _longest(facts))
        found = None
        if told is None or (hits is not None and hits not in (told, 2 * told)):
            found = measure_unit(complete, link.form, _longest(facts))
        if None in usages and any(usages):
            link.is_null_a_miss = True
            link.notes.add("its replies name cached tokens only where there are some: none named is read as 0")
        if found is None:
            # Beside a drafter (not every kind of one) a hit is one unit shorter.
            return facts if hits is None else replace(facts, has_drafter=hits == told)
        if found.unit is None:
            if told is None:
                self._refuse_ladder(found)
            link.notes.add(
                f"the server tells a unit of {told:,}, but a repeat of {2 * told + 1:,} tokens found {hits:,}: see `labcli probe`"
            )
            return facts
        says = "does not tell its unit" if told is None else f"tells a unit of {told:,}, which its hits do not keep to"
        link.notes.add(f"the server {says}: measured by repeats, hits are multiples of {found.unit:,}")
        return replace(facts, unit_size=found.unit, has_drafter=found.has_drafter)

    def _refuse_ladder(self, found: MeasuredUnit) -> None:
        link = self._link
        if not found.is_reported:
            self._refuse_silence()
        shown = f"{link.client.shown} ({link.facts.title})"
        hits = [f"{total:,} tokens: {hits:,}" for _, total, hits in found.observed if hits]
        if not hits:
            longest = max(total for _, total, _ in found.observed)
            raise TargetUnavailable(
                f"{shown} found nothing of repeated prompts up to {longest:,} tokens; "
                f"accepted: a server started {link.flags.caching} (`labcli probe` looks for other causes)"
            )
        raise TargetUnavailable(
            f"{shown} finds of repeats what no unit explains ({'; '.join(hits)}); "
            "accepted: one cache that nobody else uses (`labcli probe` looks for causes)"
        )

    def _check_witnesses(self) -> None:
        if self._link.sender.state != REPORTED and not self._link.is_null_a_miss and not self._link.has_counters:
            self._refuse_silence()

    def _refuse_silence(self) -> None:
        link = self._link
        raise TargetUnavailable(
            f"{link.client.shown} ({link.facts.title}) tells cached tokens neither in its replies nor in /metrics; "
            f"accepted: started {link.flags.report}, or {link.flags.counters}"
        )

    def _note_witnesses(self) -> None:
        link = self._link
        is_told = link.sender.state == REPORTED or link.is_null_a_miss
        if link.sender.way.is_native:
            link.notes.add(
                f"usage does not tell cached tokens, /generate does and was asked instead: start it {link.flags.report}"
            )
        elif not is_told:
            link.notes.add(
                f"replies do not tell cached tokens, the counters of /metrics are the only witness: start it {link.flags.report}"
            )
        if not link.has_counters:
            link.notes.add(
                f"/metrics shows no counters of cached tokens, the replies are the only witness: start it {link.flags.counters}"
            )
        if self.facts.max_model_len is None:
            link.notes.add(f"the server tells no limit of a prompt's length: {ASSUMED_LENGTH:,} tokens are assumed")
        if link.form.num_front:
            link.notes.add(f"the server puts {link.form.num_front:,} tokens in front of every prompt")

    def _info(self, facts: ServerFacts) -> TargetInfo:
        link, unit = self._link, facts.unit_size
        return TargetInfo(
            kind=facts.kind,
            prefix_cache="radix" if _is_radix(facts) else "hash",
            unit_size=unit,
            num_blocks=None if facts.pool_tokens is None else facts.pool_tokens // unit,
            vocab_size=link.form.vocab_size,
            max_model_len=_longest(facts) - link.form.num_front,
            model=facts.model,
            dtype="unknown",
            device="a server",
            config={
                "address": link.client.shown,
                "server": facts.title,
                "version": facts.version,
                "is_labcli": facts.is_labcli,
                "unit_size": unit,
                "pool_tokens": facts.pool_tokens,
                "has_drafter": facts.has_drafter,
                "num_engines": facts.num_engines,
                "settings": dict(facts.info),
                "prompts": "token ids" if link.form.is_exact_ids else "words",
                "vocabulary_bound": link.form.vocab_size,
                "num_front": link.form.num_front,
                "way": link.sender.way.words,
                "isolation": "renamed" if link.is_renamed else "reset",
            },
        )

    def _check_field(self, name: str, value: Any) -> None:
        served, facts = self.served, self.facts
        fixed = {
            "prefix_cache": served.prefix_cache,
            "block_size": served.unit_size,
            "page_size": served.unit_size,
            "enable_prefix_caching": True,
            "use_eagle": served.has_drafter,
            "model": facts.model,
        }
        if value is None or (name in fixed and value == fixed[name]):
            return
        if name == "max_model_len" and value <= _longest(facts):
            return
        if name == "num_gpu_blocks":
            needed = (value - 1) * served.unit_size  # block 0 is nobody's
            if facts.pool_tokens is not None and facts.pool_tokens < needed:
                self._link.notes.add(
                    f"the server's pool holds {facts.pool_tokens:,} tokens and the lab wants {needed:,}: "
                    "evictions may lower hits"
                )
            return
        accepted = f"{fixed[name]!r}, as it is served" if name in fixed else "none on a server, which keeps its own"
        raise TargetError(f"{name} is {value!r}; accepted: {accepted}")


def _is_radix(facts: ServerFacts) -> bool:
    """Whose rules the cache follows. Units of one token are a tree's; our own server may have one in vLLM's flavor too."""
    return (
        facts.kind == "sglang"
        or facts.unit_size == 1
        or (facts.is_labcli and facts.info.get("prefix_caching_hash_algo") == "None")
    )


def _repeated(complete: Callable[[Sequence[int]], Completion], link: ServerLink, total: int, longest: int) -> int | None:
    """Tokens found by the repeat of an own prompt; None when nobody tells, or it would be too long."""
    num_tokens = total - link.form.num_front
    if num_tokens < 2 or total > longest:
        return None
    prompt = link.form.own_prompt(num_tokens, link.rng)
    complete(prompt)
    return complete(prompt).num_cached_tokens


def _longest(facts: ServerFacts) -> int:
    """Tokens of prompt and output that one request may have."""
    limits = [facts.max_model_len or ASSUMED_LENGTH]
    told = facts.info.get("max_req_input_len", "")
    if told.isascii() and told.isdigit() and int(told) > 0:
        limits.append(int(told))
    if facts.pool_tokens is not None:
        limits.append(facts.pool_tokens)
    return min(limits)
