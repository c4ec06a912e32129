"""OpenServer: the targets of a run on a server. Its one cache is found out once; each target is that cache, as it is.

    find facts ─▶ find the form of prompts ─▶ find the way to send ─▶ unit: told, or measured by repeats ─▶ targets

Labs cannot run where caching is off or nothing tells cached tokens: then opening says which flag changes that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

import httpx

from labs.servers.served_unit import ServedUnit, UnitFinder
from labs.servers.server_facts import ServerFacts
from labs.servers.server_link import ServerLink
from labs.servers.server_reply import REPORTED
from labs.servers.server_run import ServerRun
from labs.targets.base import Completion, ServedCache, Target, TargetError, TargetInfo
from labs.targets.openai_http import OpenAIHttpTarget

ASSUMED_LENGTH = 8_192  # tokens of a prompt, where a server tells no limit


class OpenServer:
    """Opens targets on one server, which all share its cache. Raises TargetUnavailable when labs cannot run there.

    facts      what answers there, the unit and a drafter found by measuring included
    transport  httpx's, for tests
    """

    def __init__(self, run: ServerRun, transport: httpx.BaseTransport | None = None) -> None:
        self._link = ServerLink(run, transport)
        try:
            self._unit = unit = self._found_unit()
            self.facts: ServerFacts = replace(self._link.facts, unit_size=unit.size, has_drafter=unit.has_drafter)
            self._check_witnesses()
        except BaseException:
            self._link.client.close()
            raise
        self.kind = self.facts.kind
        is_radix = _is_radix(self.facts)
        self.served = ServedCache(
            title=_title(self.facts, unit),
            prefix_cache="radix" if is_radix else "hash",
            unit_size=self.facts.unit_size,
            has_drafter=bool(self.facts.has_drafter),
            # Known of vLLM alone. Elsewhere a lab sends one of equal prompts ahead, which is right either way.
            publishes_at_allocation=self.kind == "vllm" and not is_radix,
            num_front=self._link.form.num_front,
        )
        self._note_witnesses()
        self._link.notes.keep()

    def __call__(self, **engine_fields: Any) -> Target:
        """A target. Engine fields must be what is served: nobody can change it from outside. Raises TargetError."""
        for name, value in engine_fields.items():
            self._check_field(name, value)
        return OpenAIHttpTarget(self._link, self._info(self.facts, self._unit))

    @property
    def isolation(self) -> str:
        link = self._link
        return " and ".join(sorted(link.isolations)) or ("renamed" if link.is_renamed else "reset")

    def notes(self) -> tuple[str, ...]:
        link = self._link
        if link.renaming.is_used_up:
            link.notes.add(
                f"{link.form.vocab_size:,} ids are few: prompts may begin like older ones, which a unit of one token finds again"
            )
        link.isolations.clear()
        return link.notes.take()

    def close(self) -> None:
        """Close the connection."""
        self._link.client.close()

    def _found_unit(self) -> ServedUnit:
        """The unit and the drafter that repeats show; what the server tells of itself is only checked."""
        link, usages = self._link, []
        facts = link.facts
        size = facts.unit_size or 1
        provisional = OpenAIHttpTarget(link, self._info(replace(facts, unit_size=size), ServedUnit(size)))

        def complete(prompt: Sequence[int]) -> Completion:
            completion = provisional.complete(prompt)
            usages.append(completion.evidence.usage)
            return completion

        found = UnitFinder(link, complete, _longest(facts)).find()
        if None in usages and any(usages):
            link.is_null_a_miss = True
            link.notes.add("its replies name cached tokens only where there are some: none named is read as 0")
        return found

    def _check_witnesses(self) -> None:
        if self._link.sender.state != REPORTED and not self._link.is_null_a_miss and not self._link.has_counters:
            self._link.refuse_silence()

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
        if link.facts.metrics_trouble:
            link.notes.add(f"/metrics could not be read, the replies are the only witness: {link.facts.metrics_trouble}")
        elif not link.has_counters:
            link.notes.add(
                f"/metrics shows no counters of cached tokens, the replies are the only witness: start it {link.flags.counters}"
            )
        if self.facts.max_model_len is None:
            link.notes.add(f"the server tells no limit of a prompt's length: {ASSUMED_LENGTH:,} tokens are assumed")
        if link.form.num_front:
            link.notes.add(f"the server puts {link.form.num_front:,} tokens in front of every prompt")

    def _info(self, facts: ServerFacts, found: ServedUnit) -> TargetInfo:
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
                "unit_source": "measured" if found.is_measured else "told",
                "pool_tokens": facts.pool_tokens,
                "has_drafter": facts.has_drafter,
                "is_drafter_inferred": found.is_inferred,
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
    """Whose rules the cache follows. Of unknown servers, units of one token are a tree's; our own has one in vLLM's flavor too."""
    return (
        facts.kind == "sglang"
        or (facts.kind == "openai" and facts.unit_size == 1)
        or (facts.is_labcli and facts.info.get("prefix_caching_hash_algo") == "None")
    )


def _title(facts: ServerFacts, unit: ServedUnit) -> str:
    """The same for all versions of a server, so that records of them compare."""
    name = {"vllm": "block", "sglang": "page"}.get(facts.kind, "unit")
    measured, inferred = " (measured)" if unit.is_measured else "", ", beside a drafter (inferred)" if unit.is_inferred else ""
    return f"{facts.name}, {name} {unit.size}{measured}{inferred}"


def _longest(facts: ServerFacts) -> int:
    """Tokens of prompt and output that one request may have."""
    limits = [facts.max_model_len or ASSUMED_LENGTH]
    told = facts.info.get("max_req_input_len", "")
    if told.isascii() and told.isdigit() and int(told) > 0:
        limits.append(int(told))
    if facts.pool_tokens is not None:
        limits.append(facts.pool_tokens)
    return min(limits)
