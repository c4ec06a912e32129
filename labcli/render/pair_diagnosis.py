"""The diagnosis of two requests as people read it, and as programs do. Salts never; prompt text only in `passages`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from labcli.printable import escaped, escaped_json
from labcli.render.plain_table import plain_table
from labcli.render.trimmed import Trimmed
from labcli.utf8_output import write_utf8
from labs.diagnose.diagnosis import PairDiagnosis
from labs.diagnose.loss import Loss
from labs.diagnose.request_pair import PairedRequest, PairReport
from labs.theory import full_blocks

_LEAST_WORDS = 24  # columns of the last cell: narrower, its words stand one a line


def print_report(report: PairReport, console: Console | None = None) -> None:
    """The two requests, the verdict, what each cache loses to which cause, the evidence, and what to do."""
    console = console or Console(highlight=False)
    for request in report.requests:
        console.print(Text(escaped(f"{request.label}  {request.path}: {_described(request)}")), soft_wrap=True)
    console.print()
    console.print(Trimmed(Text(_verdict(report.diagnoses[0]), style="bold")))
    console.print()
    _print_losses(report, console)
    console.print()
    for line in _evidence(report):
        console.print(Trimmed(Text(escaped(line))))
    console.print()
    for line in _advice(report):
        console.print(Trimmed(Text(line)))
    for note in report.notes:
        console.print(Text(escaped(f"note: {note}")))


def write_report_json(report: PairReport) -> None:
    """The same on stdout, as one JSON object in UTF-8; what a terminal would obey is escaped."""
    document = json.dumps(report_json(report), indent=2, ensure_ascii=False, allow_nan=False)
    write_utf8(escaped_json(document) + "\n")


def report_json(report: PairReport) -> dict[str, Any]:
    """JSON-ready; `cause`, `hint` and `evidence` are those of the first cache."""
    first, parting = report.diagnoses[0], report.parting
    content = {
        "requests": {request.label: _request_json(request) for request in report.requests},
        "cause": first.cause,
        "first_difference": parting.first_difference,
        "differing_ids": first.differing_ids,
        "section": dict(zip("AB", report.sections)),
        "replaced_tokens": dict(zip("AB", parting.replaced)),
        "equal_tokens_after": parting.equal_after,
        "looks_like": report.looks_like,
        "identity_differences": first.identity_differences,
        "caches": [_cache_json(one) for one in report.diagnoses],
        "hint": first.hint,
        "evidence": first.evidence,
        "notes": report.notes,
    }
    if report.passages is not None:
        content["text"] = {label: asdict(one) for label, one in zip("AB", report.passages)}
    return content


def _request_json(request: PairedRequest) -> dict[str, Any]:
    fields = request.prompt.fields
    return {
        "path": request.path,
        "kind": request.prompt.kind,
        "num_tokens": len(request.rendered.token_ids),
        "has_salt": fields.cache_salt is not None,
        "lora": None if request.lora is None else request.lora.name,
        "num_images": len(fields.images),
    }


def _cache_json(one: PairDiagnosis) -> dict[str, Any]:
    return {
        "cache": one.cache,
        "unit": one.unit,
        "cause": one.cause,
        "reusable_tokens": one.reusable_tokens,
        "law": one.law,
        "full_blocks": one.full_blocks,
        "lost_tokens": one.lost_tokens,
        "lost_blocks": one.lost_blocks,
        "losses": [asdict(loss) for loss in one.losses],
        "image_difference": None if one.image_difference is None else asdict(one.image_difference),
        "hint": one.hint,
        "evidence": one.evidence,
    }


def _described(request: PairedRequest) -> str:
    fields = request.prompt.fields
    parts = [request.prompt.kind, _count(len(request.rendered.token_ids), "token")]
    parts += ["with a salt"] if fields.cache_salt is not None else []
    parts += [f"LoRA {request.lora.name!r}"] if request.lora is not None else []
    parts += [_count(len(fields.images), "image")] if fields.images else []
    return ", ".join(parts)


def _verdict(one: PairDiagnosis) -> str:
    found = f"{_title(one)}: B reuses {_count(one.reusable_tokens, 'token')} of A"
    if not one.losses:
        return f"{found}, all it can."
    return f"{found}. In the way: {'; '.join(_cause(one, loss) for loss in one.losses)}."


def _title(one: PairDiagnosis) -> str:
    return f"{one.cache}, {'block' if one.cache == 'hash' else 'page'} {one.unit:,}"


def _cause(one: PairDiagnosis, loss: Loss) -> str:
    words = {
        "front": "ids differ at position 0",
        "divergence": f"ids differ at position {one.first_difference or 0:,}",
        "identity": ", ".join("other images" if name == "images" else f"another {name}" for name in one.identity_differences),
        "parted": f"prompts part at position {one.first_difference or 0:,}, no equal block behind",
        "logprobs": "prompt logprobs: nothing is looked up",
        "too short": f"shorter than {'two blocks' if one.drafter else 'one block'} of {one.unit:,}",
        "last token": "last token computed again",
        "drafter": "drafter",
    }
    return words[loss.cause]


def _print_losses(report: PairReport, console: Console) -> None:
    """What each cause costs in each cache: as a table, or as lines where the terminal is too narrow for its cells."""
    titles, rows = ("cache", "B reuses", "of", "lost", "blocks", "because"), _loss_rows(report)
    widths = [max(map(len, column)) for column in zip(titles, *rows)]
    if sum(widths[:-1]) + 2 * len(widths[:-1]) + min(widths[-1], _LEAST_WORDS) <= console.width:
        table = plain_table(*titles, names=("cache", "because"))
        table.columns[-1].no_wrap = False
        for row in rows:
            table.add_row(*row)
        console.print(Trimmed(table))
        return
    for cache, reused, of, lost, blocks, because in rows:
        if cache:
            console.print(Text(f"{cache}: {reused} of {of} reused"))
        console.print(Text(f"- {lost} lost, {blocks} {'block' if blocks == '1' else 'blocks'}: {because}"))


def _loss_rows(report: PairReport) -> list[tuple[str, ...]]:
    """One row a cause; a cache's first row names it."""
    rows: list[tuple[str, ...]] = []
    for one in report.diagnoses:
        start = (_title(one), f"{one.reusable_tokens:,}", f"{len(report.requests[1].rendered.token_ids):,}")
        if not one.losses:
            rows.append((*start, "0", "0", "nothing is lost"))
        for loss in one.losses:
            rows.append((*start, f"{loss.tokens:,}", f"{full_blocks(loss.tokens, one.unit):,}", _cause(one, loss)))
            start = ("", "", "")
    return rows


def _evidence(report: PairReport) -> list[str]:
    lines = [f"evidence: {report.diagnoses[0].evidence}"]
    lines += [f"{_title(one)}: {one.law}" for one in report.diagnoses]
    sections = [section for section in report.sections if section is not None]
    if sections:
        both = len(set(sections)) == 1 and len(sections) == 2
        named = zip("AB", report.sections)
        each = "; ".join(f"{label}: {one}" for label, one in named if one is not None)
        lines.append(f"where: {sections[0] if both else each}")
    if report.looks_like is not None:
        lines.append(f"what differs looks like {report.looks_like}")
    for label, one in zip("AB", report.passages or ()):
        lines.append(f"text of {label}: {one.before!r} | {one.differing!r} | {one.after!r}")
    return lines


def _advice(report: PairReport) -> list[str]:
    """Each hint once, the dearest first, with the caches it is for where it is not for all."""
    hints: dict[str, list[str]] = {}
    for one in report.diagnoses:
        for hint in [loss.hint for loss in one.losses] or [one.hint]:
            hints.setdefault(hint, []).append(_title(one))
    lines = [
        f"what to do: {hint}" if len(titles) == len(report.diagnoses) else f"what to do ({titles[0]}): {hint}"
        for hint, titles in hints.items()
    ]
    if any(_needs_both(one) for one in report.diagnoses):
        lines.append("Repair the identity in any case: while it differs, equal ids bring nothing.")
    return lines


def _needs_both(one: PairDiagnosis) -> bool:
    tokens = {loss.cause: loss.tokens for loss in one.losses}
    whole_identity = "identity" in tokens and one.identity_differences != ("images",)  # an image leaves what is in front of it
    return whole_identity and bool(tokens.get("front") or tokens.get("divergence"))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
