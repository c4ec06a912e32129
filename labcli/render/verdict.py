"""How a run ended, in a few words: for lists, pages and headings."""

from __future__ import annotations

from labcli.record import ResultRecord
from labs.outcome import UNCOUNTED

STATUS_STYLES = {"ok": "green", "disagrees": "bold red", "interrupted": "yellow", "failed": "bold red"}


def predictions_met(record: ResultRecord) -> str:
    """ "120/120", or "–" where nothing was predicted."""
    if not record.num_predictions:
        return "–"
    return f"{record.num_predictions - len(record.missed)}/{record.num_predictions}"


def verdict_words(record: ResultRecord) -> str:
    """A sentence: "all 120 predictions met", "interrupted; 3 of 120 predictions missed until then"."""
    total, missed = record.num_predictions, len(record.missed)
    if not total:
        words = "nothing was predicted"
    elif missed:
        words = f"{missed:,} of {total:,} predictions missed"
    else:
        words = f"all {total:,} predictions met" if total > 1 else "the prediction was met"
    if record.status == "interrupted":
        return f"interrupted; {words} until then"
    if record.error == UNCOUNTED:  # it ran to its end
        return f"failed ({record.error}); {words}"
    if record.status == "failed":
        return f"failed{f' ({record.error})' if record.error else ''}; {words} until then"
    return words


def when_words(record: ResultRecord, *, seconds: bool = False) -> str:
    """The start as people read it, in UTC: "2026-03-01 14:25"."""
    return record.started_at[: 19 if seconds else 16].replace("T", " ")


def commit_words(record: ResultRecord) -> str:
    """ "4b825dc6", with "+" where the code had changes that are in no commit; "–" outside of a checkout."""
    commit = record.environment.get("commit")
    return "–" if commit is None else commit[:8] + ("+" if record.environment.get("dirty") else "")


def lab_words(record: ResultRecord) -> str:
    """ "04 prefix-cache-hit-rate", "hash-bench"."""
    number = record.lab["number"]
    return record.lab["name"] if number is None else f"{number:02d} {record.lab['name']}"
