"""ServedUnit: of which unit a server's hits are multiples, and whether a drafter shortens them: told and checked, or measured.

    told      one repeat of two units and a token must find both units, or one beside a drafter; where it does not, two more are
              sent, because one can be lost to others' traffic, and then the unit is measured (labs/servers/unit_ladder.py)
    measured  where nothing is told, or hits do not keep to it

A measurement cannot tell a drafter from an engine that loses one unit of every match. So a server that tells that it has none
is believed, and labs then fail on it; one that tells nothing is taken to have one, and the title and the record say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Sequence

from labs.servers.server_link import ServerLink
from labs.servers.unit_ladder import MeasuredUnit, measure_unit
from labs.targets.base import Completion, TargetUnavailable

NUM_REPEATS = 3  # where the first finds something else than it should, or several engines share the address

Complete = Callable[[Sequence[int]], Completion]


@dataclass(frozen=True)
class ServedUnit:
    """What hits are made of."""

    size: int  # tokens
    has_drafter: bool | None = None  # None: nobody tells, and no repeat could be sent
    is_measured: bool = False  # not told
    is_inferred: bool = False  # a drafter that hits alone show


class UnitFinder:
    """Finds the unit of one server.

    complete  sends a prompt of the form's ids, one token to generate
    longest   tokens of prompt and output that one request may have
    """

    def __init__(self, link: ServerLink, complete: Complete, longest: int) -> None:
        self._link, self._complete, self._longest = link, complete, longest
        self._told = link.facts.unit_size
        self._drafter_told = link.facts.has_drafter

    def find(self) -> ServedUnit:
        """Raises TargetUnavailable where no unit explains what repeats find, or several engines know different prompts."""
        told = self._told
        if told is None:
            return self._measured(())
        repeats = self._repeats()
        fitting = [hits for hits in repeats if hits in (told, 2 * told)]
        self._check_engines(repeats)
        if not repeats:
            return ServedUnit(told, self._drafter_told)
        if not fitting:
            return self._measured(repeats)
        if len(fitting) < len(repeats):
            self._note_lost(len(repeats) - len(fitting), len(repeats))
        return self._with_drafter(told, all(hits == told for hits in fitting))

    def _repeats(self) -> list[int]:
        """Tokens that repeats of two units and a token found; empty where nobody tells, or they would be too long."""
        found: list[int] = []
        total = 2 * self._told + 1
        num_tokens = total - self._link.form.num_front
        while len(found) < NUM_REPEATS and num_tokens >= 2 and total < self._longest:
            prompt = self._link.form.own_prompt(num_tokens, self._link.rng)
            self._complete(prompt)
            hits = self._complete(prompt).num_cached_tokens
            if hits is None:
                break
            found.append(hits)
            if hits in (self._told, 2 * self._told) and self._link.facts.num_engines == 1:
                break
        return found

    def _check_engines(self, repeats: Sequence[int]) -> None:
        number, link = self._link.facts.num_engines, self._link
        if number == 1:
            return
        if num_missed := repeats.count(0):
            raise TargetUnavailable(
                f"{number} engines share {link.client.shown}, each with a cache of its own, and {num_missed} of {len(repeats)} repeats "
                "met another one than the prompt before; accepted: one engine, or a router that sends equal beginnings to the same"
            )
        link.notes.add(f"{number} engines share this address, each with a cache of its own: a repeat may meet another one")

    def _with_drafter(self, size: int, is_short: bool, is_measured: bool = False) -> ServedUnit:
        """is_short: every repeat found one unit less than without a drafter."""
        notes = self._link.notes
        if is_short and self._drafter_told is False:
            notes.add(
                "hits are one unit short, and the server tells that it has no speculative drafter: something loses a unit of each match"
            )
        elif is_short and self._drafter_told is None:
            notes.add(
                "hits are one unit short: taken for a speculative drafter, which the server does not tell; without one this is a fault"
            )
            return ServedUnit(size, True, is_measured, is_inferred=True)
        # Not every kind of drafter shortens hits.
        return ServedUnit(size, bool(self._drafter_told) and is_short, is_measured)

    def _measured(self, repeats: Sequence[int]) -> ServedUnit:
        told, link = self._told, self._link
        found = measure_unit(self._complete, link.form, self._longest, may_draft=self._drafter_told is not False)
        if found.unit is None:
            if told is None:
                self._refuse(found)
            link.notes.add(
                f"the server tells a unit of {told:,}, but a repeat of {2 * told + 1:,} tokens found {repeats[-1]:,}: see `labcli probe`"
            )
            return ServedUnit(told, self._drafter_told)
        if found.unit == told:
            self._note_lost(len(repeats), len(repeats))
            return self._with_drafter(told, found.has_drafter)
        says = "does not tell its unit" if told is None else f"tells a unit of {told:,}, which its hits do not keep to"
        link.notes.add(
            f"the server {says}: measured by repeats, hits are multiples of {found.unit:,}; that lengths agree with it is all that "
            "the labs' predictions test of the unit"
        )
        return self._with_drafter(found.unit, found.has_drafter, is_measured=True)

    def _note_lost(self, num_lost: int, num_sent: int) -> None:
        self._link.notes.add(
            f"{num_lost} of {num_sent} repeats at the opening found less than a later one: somebody evicts here, or sends requests "
            "elsewhere"
        )

    def _refuse(self, found: MeasuredUnit) -> None:
        link = self._link
        if not found.is_reported:
            link.refuse_silence()
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
