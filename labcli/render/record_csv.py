"""Records as CSV: one line a sample, every raw value, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from typing import Iterable, Iterator

from labcli.record import ResultRecord
from labcli.render.verdict import lab_words
from labcli.results_store import StoredRecord
from labcli.target_facts import TargetFacts

COLUMNS = (
    "run_id", "started_at", "lab", "status", "cache_state", "target", "gpu", "model", "dtype", "device", "machine", "commit",
    "dirty", "group", "row", "name", "unit", "sample_index", "value", "predicted", "predicted_low", "predicted_high", "agrees",
)  # fmt: skip


def records_csv(stored: Iterable[StoredRecord]) -> str:
    """The whole table with its heading; empty fields where a record does not say. Lines end as RFC 4180 has it."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for one in stored:
        writer.writerows(_lines(one.record))
    return text.getvalue()


def _lines(record: ResultRecord) -> Iterator[list[object]]:
    facts, environment = TargetFacts.of(record), record.environment
    run = [
        record.run_id, record.started_at, lab_words(record), record.status, record.cache_state, facts.kind, facts.gpu,
        facts.model, facts.dtype, facts.device, environment.get("machine"), environment.get("commit"), environment.get("dirty"),
    ]  # fmt: skip
    for one in record.measurements:
        predicted = [None] * 3 if one.predicted is None else [one.predicted.value, one.predicted.low, one.predicted.high]
        for index, value in enumerate(one.samples):
            yield [*run, one.group, one.row, one.name, one.unit, index, value, *predicted, one.agrees]
