"""Records as one HTML page: no scripts, no other files, nothing from the network, at most 300 KB for every lab.

    heading, one line a lab      question, verdict, when, target
    for each lab                 verdict, charts, key laws, findings, conclusion, conditions, all measurements

A page that would be larger leaves tables of measurements out, the longest first, then all but the first chart of a lab,
then all but a lab's heading; it says so where they would be. Everything a record holds is escaped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Sequence

from labcli.fault import UsageFault
from labcli.record import ResultRecord
from labcli.render.charts_svg import SHARED_DEFINITIONS, chart_figure
from labcli.render.quantity import format_samples, format_value
from labcli.render.record_charts import charts_of
from labcli.render.svg.canvas import clean
from labcli.render.verdict import commit_words, lab_words, predictions_met, verdict_words, when_words
from labcli.results_store import StoredRecord
from labcli.target_facts import TargetFacts
from labs.protocol import Measurement

MARKER = "<!-- labcli results report -->"  # by which a page of ours is known again, and replaced
MAX_BYTES = 300_000
MAX_ITEMS = 6  # of a list, before the rest is folded
MOST_ITEMS = 60  # of a list; of more than that labcli results show tells as many as are wanted
_MOST_ROWS = 6  # named behind a law
_MOST_LETTERS = 200  # of a text in a heading
_QUOTED = re.compile(r'="([\w.#%-]+)"(?=[ >])')
_CHART_IDS = 100  # at most so many charts a lab, each with an id of its own


@dataclass
class Section:
    """One record's part of the page, in the pieces that can be left out."""

    number: int
    stored: StoredRecord
    charts: list[str]
    table: str
    table_left_out: bool = False
    num_charts_left_out: int = 0
    is_heading_alone: bool = False

    def leave_out_table(self) -> None:
        self.table_left_out = True

    def leave_out_charts(self) -> None:
        self.num_charts_left_out = max(0, len(self.charts) - 1)
        del self.charts[1:]

    def leave_out_all(self) -> None:
        self.is_heading_alone = True

    def html(self) -> str:
        """Without the quotes that HTML does not ask for; a text has none that are not escaped."""
        return _QUOTED.sub(r"=\1", self._html())

    def _html(self) -> str:
        record = self.stored.record
        if self.is_heading_alone:
            return (
                f'<section id="r{self.number}">{_heading(record)}<p class="soft">All else was left out to keep this page small: '
                f"<code>labcli results show {clean(record.run_id[:8])}</code> has it.</p></section>\n"
            )
        left_out = ""
        if self.num_charts_left_out:
            left_out = f'<p class="soft">{self.num_charts_left_out} more charts were left out to keep this page small.</p>'
        table = self.table
        if self.table_left_out:
            table = (
                f'<p class="soft">The table of all {len(record.measurements):,} measurements was left out to keep this page '
                f"small: <code>labcli results show {clean(record.run_id[:8])}</code> has it.</p>"
            )
        return (
            f'<section id="r{self.number}">{_heading(record)}'
            f'<div class="charts">{"".join(self.charts)}</div>{left_out}{_laws(record)}{_findings(record)}'
            f"{_conditions(self.stored)}{table}</section>\n"
        )


def build_report(stored: Sequence[StoredRecord], made_at: str) -> str:
    """The page's text, of records in the order given. made_at: ISO 8601, UTC. Raises UsageFault for too many records."""
    sections = []
    for number, one in enumerate(stored, start=1):
        charts = [chart_figure(chart, number * _CHART_IDS + at) for at, chart in enumerate(charts_of(one.record)[:_CHART_IDS])]
        sections.append(Section(number, one, charts, _measurement_table(one.record)))
    frame = _frame(sections, made_at)
    if not _leave_out(sections, MAX_BYTES - len(_bytes(frame))):
        raise UsageFault(
            f"{len(sections):,} records make a page of more than {MAX_BYTES // 1000} kB even without charts and tables",
            "fewer records, or --lab",
        )
    return frame.replace("<!-- sections -->", "".join(section.html() for section in sections))


def _leave_out(sections: list[Section], room: int) -> bool:
    """Drop tables, the longest first, then charts, then all but headings, until the sections fit; whether they do."""
    sizes = {section.number: len(_bytes(section.html())) for section in sections}
    steps: tuple[tuple[Callable[[Section], int], Callable[[Section], None]], ...] = (
        (lambda section: len(section.table), Section.leave_out_table),
        (lambda section: sum(map(len, section.charts)), Section.leave_out_charts),
        (lambda section: sizes[section.number], Section.leave_out_all),
    )
    for size, leave_out in steps:
        for section in sorted(sections, key=size, reverse=True):
            if sum(sizes.values()) <= room:
                return True
            leave_out(section)
            sizes[section.number] = len(_bytes(section.html()))
    return sum(sizes.values()) <= room


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")


def _frame(sections: Sequence[Section], made_at: str) -> str:
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    rows = "".join(_summary_row(section) for section in sections)
    count = f"{len(sections)} record{'' if len(sections) == 1 else 's'}"
    return (
        f'<!doctype html>\n{MARKER}\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>Prefix caching: what was predicted and measured</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        f"{SHARED_DEFINITIONS}\n<header><h1>Prefix caching: what was predicted and measured</h1>\n"
        f'<p class="soft">{count} of labcli, shown {clean(made_at[:16].replace("T", " "))} UTC. '
        "Every prediction was computed before its run; counts must be met exactly, times are shown with their spread.</p>\n"
        '<table class="summary"><thead><tr><th>Lab</th><th>Question</th><th>Verdict</th><th>Started (UTC)</th><th>Target</th>'
        f"</tr></thead><tbody>{rows}</tbody></table></header>\n<main>\n<!-- sections --></main>\n</body>\n</html>\n"
    )


def _summary_row(section: Section) -> str:
    record = section.stored.record
    return (
        f'<tr><td><a href="#r{section.number}">{_short(lab_words(record))}</a></td><td>{_short(record.lab["question"])}</td>'
        f'<td>{_short_verdict(record)}</td><td class="when">{_short(when_words(record))}</td>'
        f"<td>{_short(TargetFacts.of(record).words)}</td></tr>\n"
    )


def _short(text: str) -> str:
    """For headings: a text of a record may be of any length."""
    return clean(text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…")


def _short_verdict(record: ResultRecord) -> str:
    """One word or two, for a narrow column."""
    met = predictions_met(record)
    words = f"{met} met" if record.num_predictions else "no predictions"
    css, sign = _mark(record)
    return f'<span class="{css}">{sign}{f"{record.status}, " if record.status in ("interrupted", "failed") else ""}{words}</span>'


def _verdict(record: ResultRecord) -> str:
    css, sign = _mark(record)
    return f'<span class="{css}">{sign}{_short(verdict_words(record))}</span>'


def _mark(record: ResultRecord) -> tuple[str, str]:
    if record.status in ("disagrees", "failed"):
        return "bad", "✗ "
    return ("good", "✓ ") if record.status == "ok" and record.num_predictions else ("soft", "")


def _heading(record: ResultRecord) -> str:
    kind = "Bench" if record.lab["number"] is None else "Lab"
    return (
        f'<p class="eyebrow">{kind} {_short(lab_words(record))}</p><h2>{_short(record.lab["question"])}</h2>'
        f'<p>{_verdict(record)} <span class="soft">· {_short(TargetFacts.of(record).words)} · {_short(when_words(record))} UTC'
        f"{f' · cache {_short(record.cache_state)} at the start' if record.cache_state else ''}</span></p>\n"
    )


def _laws(record: ResultRecord) -> str:
    """The laws a lab calls key and those of missed predictions, each once."""
    laws: dict[str, list[str]] = {}
    for one in record.measurements:
        if one.predicted is not None and (one.key or one.agrees is False):
            laws.setdefault(f"{one.name} = {one.predicted.law}", []).append(one.row)
    if not laws:
        return ""
    items = []
    for law, rows in laws.items():
        named = [row for row in dict.fromkeys(rows) if row]
        more = [f"and {len(named) - _MOST_ROWS} more"] if len(named) > _MOST_ROWS + 1 else []
        named = [*named[:_MOST_ROWS], *more] if more else named
        where = f' <span class="soft">({clean("; ".join(named))})</span>' if named else ""
        items.append(f"<code>{clean(law)}</code>{where}")
    return f"<h3>Laws behind the predictions</h3>{_list(items, 'plain laws', 'laws')}"


def _findings(record: ResultRecord) -> str:
    text = ""
    if record.findings:
        text += f"<h3>Findings</h3>{_list([clean(finding) for finding in record.findings], 'plain', 'findings')}"
    if record.conclusion:
        text += f"<h3>Conclusion</h3><p>{clean(record.conclusion)}</p>\n"
    return text


def _list(items: Sequence[str], css: str, what: str) -> str:
    """A list of HTML texts; what is more than a glance takes in opens on demand."""
    shown, more = (items, []) if len(items) <= MAX_ITEMS + 1 else (items[:MAX_ITEMS], items[MAX_ITEMS:])
    text = f'<ul class="{css}">{"".join(f"<li>{item}</li>" for item in shown)}</ul>'
    if more:
        inside = "".join(f"<li>{item}</li>" for item in more[:MOST_ITEMS])
        if len(more) > MOST_ITEMS:
            inside += f"<li>{len(more) - MOST_ITEMS:,} {what} were left out to keep this page small</li>"
        text += f'<details><summary>{len(more):,} more {what}</summary><ul class="{css}">{inside}</ul></details>'
    return text + "\n"


def _conditions(stored: StoredRecord) -> str:
    record, environment = stored.record, stored.record.environment
    machine = [environment.get("cpu"), f"{environment['num_cpus']} cores" if environment.get("num_cpus") else None]
    machine += [environment.get("gpu"), f"id {environment['machine']}" if environment.get("machine") else None]
    packages = environment.get("packages") if isinstance(environment.get("packages"), dict) else {}
    software = [f"Python {environment['python']}" if environment.get("python") else None, environment.get("os")]
    software += [f"{name} {version}" for name, version in packages.items() if version]
    commit = commit_words(record)
    facts = {
        "Target": TargetFacts.of(record).words,
        "Cache at the start": record.cache_state,
        "Machine": ", ".join(str(part) for part in machine if part),
        "Software": ", ".join(str(part) for part in software if part),
        "Code": "not from a checkout"
        if commit == "–"
        else f"commit {commit.rstrip('+')}" + (", with changes" if "+" in commit else ""),
        "Settings": ", ".join(f"{name} {_setting(value)}" for name, value in record.lab_config.items()),
        "Record": f"{record.run_id} in {stored.path.parent.name}/{stored.path.name}",
    }
    items = "".join(f"<dt>{name}</dt><dd>{clean(value)}</dd>" for name, value in facts.items() if value)
    return f"<h3>Conditions</h3><dl>{items}</dl>\n"


def _setting(value: object) -> str:
    if isinstance(value, list):
        return "(" + " ".join(map(str, value)) + ")"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _measurement_table(record: ResultRecord) -> str:
    if not record.measurements:
        return ""
    rows: list[str] = []
    group, row = "", ""
    for one in record.measurements:
        if one.group != group:
            group, row = one.group, ""
            rows.append(f"<tr class=group><th colspan=5>{clean(group)}")
        rows.append(_measurement_row(one, "" if one.row == row else one.row))
        row = one.row
    return (
        f'<details class="table"><summary>All {len(record.measurements):,} measurements, predicted and measured</summary>'
        '<div class="scroll"><table><thead><tr><th>Scenario</th><th>Quantity</th><th>Predicted</th>'
        f"<th>Measured</th><th></th></tr></thead><tbody>\n{''.join(rows)}</tbody></table></div></details>\n"
    )


def _measurement_row(one: Measurement, label: str) -> str:
    """label: the row's name, on its first line only."""
    predicted = ""
    if one.predicted is not None:
        predicted = format_value(one.predicted.value, one.unit)
        if one.predicted.low is not None and one.predicted.high is not None:
            predicted = f"{format_value(one.predicted.low, one.unit)} to {format_value(one.predicted.high, one.unit)}"
    sign = {True: "<td>✓", False: "<td class=bad>✗", None: "<td>"}[one.agrees]
    name = one.name if one.unit == "s" else f"{one.name}, {one.unit}"
    # Without the end tags that HTML leaves to the writer: a page has a thousand such rows.
    cells = (label, name, predicted, format_samples(one.samples, one.unit))
    return "<tr>" + "".join(f"<td>{clean(cell)}" for cell in cells) + sign
