"""A probe's verdicts as people read them, and as programs do. Prompts, token ids, salts and keys are in neither."""

from __future__ import annotations

import json
from dataclasses import asdict
from textwrap import wrap
from typing import Any, Sequence

from rich.console import Console
from rich.text import Text

from labcli.printable import escaped, escaped_json
from labcli.render.trimmed import Trimmed
from labcli.utf8_output import write_utf8
from labs.probe.observation import Observations, Sent
from labs.probe.own_rate import OwnRate
from labs.probe.rules.shortfall import SHORTFALL
from labs.probe.rules.words import count
from labs.probe.verdict import FINE, Verdict

SCHEMA = 1
SERVER_KEYS = (
    "title", "kind", "version", "is_labcli", "model", "num_models", "max_model_len", "unit_size", "is_caching", "pool_tokens",
    "has_drafter", "has_counters", "has_reset", "has_tokenizer", "num_engines",
)  # fmt: skip
STYLES = {"fault": "bold red", "expected": "bold", "cannot tell": "bold yellow", "fine": "green"}


def print_report(shown: str, seen: Observations, verdicts: Sequence[Verdict], console: Console | None = None) -> None:
    """One line of what it is, then verdicts worst first, then what this probe's own repeats found."""
    console = console or Console(highlight=False)
    console.print(Trimmed(Text(escaped(_what_it_is(shown, seen)))))
    for verdict in verdicts:
        if verdict.state != FINE:
            _print_verdict(verdict, console)
    fine = [verdict for verdict in verdicts if verdict.state == FINE]
    if fine:
        console.print()
    for verdict in fine:
        _print_headline(verdict, console)
    console.print()
    console.print(Trimmed(Text(escaped(_closing(seen, verdicts)))))


def write_report_json(shown: str, seen: Observations, verdicts: Sequence[Verdict]) -> None:
    """The same on stdout, as one JSON object in UTF-8; what a terminal would obey is escaped."""
    document = json.dumps(report_json(shown, seen, verdicts), indent=2, ensure_ascii=False, allow_nan=False)
    write_utf8(escaped_json(document) + "\n")


def report_json(shown: str, seen: Observations, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """JSON-ready; the keys are told in labcli/commands/probe.py."""
    rate = OwnRate.of(seen)
    return {
        "schema": SCHEMA,
        "server": {"address": shown, **{key: getattr(seen.facts, key) for key in SERVER_KEYS}},
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "own_rate": {**asdict(rate), "rate": rate.value, "law": rate.law or None},
        "requests": [_sent_json(one) for one in seen.sent],
        "sent": {
            "num_requests": seen.num_requests,
            "seconds": round(seen.seconds, 3),
            "form": seen.form,
            "num_failed": len(seen.failures),
            "num_turned_away": seen.num_turned_away,
            "stopped": seen.stopped or None,
            "left_out": seen.left_out,
        },
    }


def _sent_json(one: Sent) -> dict[str, Any]:
    return {
        "purpose": one.purpose,
        "prompt": one.prompt,
        "turn": one.turn,
        "length": one.length,
        "matched": one.match,
        "cached": one.cached,
        "usage_cached": one.usage.cached_tokens,
        "counted": {"queries": one.counted.queries, "hits": one.counted.hits},
        "salt": one.salt,
        "seconds": round(one.seconds, 6),
    }


def _what_it_is(shown: str, seen: Observations) -> str:
    facts = seen.facts
    parts = [f"{facts.title} at {shown}, model {facts.model}"]
    parts += [f"{'page' if facts.kind == 'sglang' else 'block'} {facts.unit_size:,}"] if facts.unit_size else []
    parts += [f"pool {facts.pool_tokens:,} tokens"] if facts.pool_tokens else []
    parts += [f"up to {facts.max_model_len:,} a request"] if facts.max_model_len else []
    return ", ".join(parts)


def _print_headline(verdict: Verdict, console: Console) -> None:
    text = Text()
    text.append(verdict.state, style=STYLES[verdict.state])
    text.append(f" ({verdict.confidence}) ")
    text.append(f"{verdict.name}: {escaped(verdict.finding)}")
    console.print(Trimmed(text))


def _print_verdict(verdict: Verdict, console: Console) -> None:
    console.print()
    _print_headline(verdict, console)
    for line in verdict.evidence:
        _print_hanging("  - ", line, console)
    if verdict.next_step:
        _print_hanging("  next: ", verdict.next_step, console)


def _print_hanging(start: str, line: str, console: Console) -> None:
    """A line whose further lines stand under its first word; no flag is cut in two."""
    whole = {"break_long_words": False, "break_on_hyphens": False}
    lines = wrap(escaped(line), max(console.width, 40), initial_indent=start, subsequent_indent=" " * len(start), **whole)
    console.print(Text("\n".join(lines)), soft_wrap=True)


def _closing(seen: Observations, verdicts: Sequence[Verdict]) -> str:
    """What this probe's own repeats found, against the law; and how the probe ended."""
    rate = OwnRate.of(seen)
    num_faults = sum(verdict.is_fault for verdict in verdicts)
    found = f"{num_faults or 'No'} fault{'' if num_faults == 1 else 's'} found"
    found += ", but repeats that find less than they can," if any(one.name == SHORTFALL for one in verdicts) else ""
    found += f" with {seen.num_requests:,} requests in {seen.seconds:,.1f} s"
    found += f", cut short: {seen.stopped}" if seen.stopped else ""
    found += f"; left out: {', '.join(seen.left_out)}" if seen.left_out else ""
    if rate.value is None:
        return f"{found}. What this probe's own repeats found is unknown."
    line = f"This probe's {count(rate.num_repeats, 'repeat')} found {rate.num_cached:,} of {rate.num_tokens:,} tokens ({rate.value:.1%})"
    law = f"; the law {rate.law} gives {rate.expected:,}" if rate.expected is not None else "; no unit is known to compare with"
    return f"{found}. {line}{law}."
