"""tests/CONFORMANCE.md is complete, and what it names exists."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest

from labs.conformance.golden import read_scenarios

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "CONFORMANCE.md"
NUM_ITEMS = 74
DOES_NOT_APPLY = "**Does not apply:**"
WITHOUT = "**without**"
MIN_REASON_WORDS = 4


class Row(NamedTuple):
    number: int
    item: str
    where: str

    @property
    def named(self) -> list[str]:
        """What stands in backquotes before any reason: tests and scenarios."""
        reason_at = min((self.where.find(mark) for mark in (DOES_NOT_APPLY, WITHOUT) if mark in self.where), default=None)
        return re.findall(r"`([^`]+)`", self.where[:reason_at])

    @property
    def reason(self) -> str:
        for mark in (DOES_NOT_APPLY, WITHOUT):
            if mark in self.where:
                return self.where.partition(mark)[2].strip()
        return ""
def read_rows(text: str) -> list[Row]:
    rows = []
    for line in text.splitlines():
        if re.match(r"\|\s*\d+\s*\|", line):
            number, item, where = line.strip().strip("|").split("|")
            rows.append(Row(int(number), item.strip(), where.strip()))
    return rows


def complaint(row: Row) -> str | None:
    """What is wrong with a row; None when nothing is."""
    if not row.item:
        return "the item has no words"
    if DOES_NOT_APPLY in row.where and row.named:
        return "tests are named for what does not apply"
    if (not row.named or WITHOUT in row.where) and len(row.reason.split()) < MIN_REASON_WORDS:
        return "neither a test nor a reason" if not row.named else "a part is left out without a reason"
    for named in row.named:
        if named.startswith("verify: "):
            kind, _, scenario = named.removeprefix("verify: ").partition("/")
            if scenario not in scenario_names(kind):
                return f"no recorded scenario {kind}/{scenario}"
        else:
            path, _, name = named.partition("::")
            if name.partition("[")[0] not in names_of_tests(path):
                return f"no test {named}"
    return None


@lru_cache(maxsize=None)
def scenario_names(kind: str) -> frozenset[str]:
    if not (ROOT / "labs" / "recorded" / f"{kind}.jsonl.gz").is_file():
        return frozenset()
    return frozenset(scenario["name"] for scenario in read_scenarios(kind))


@lru_cache(maxsize=None)
def names_of_tests(path: str) -> frozenset[str]:
    """The test functions of a file, none if there is no such file."""
    file = ROOT / path
    if not path.startswith("tests/") or not file.is_file():
        return frozenset()
    names = (node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in names if name.startswith("test_"))


ROWS = read_rows(TABLE.read_text())


def test_every_item_has_one_row_in_order():
    assert [row.number for row in ROWS] == list(range(1, NUM_ITEMS + 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_a_row_names_what_exists_or_gives_a_reason(row):
    assert complaint(row) is None


def test_every_test_of_a_conformance_file_is_named():
    """So that no test outlives the row it was written for."""
    named = {one for row in ROWS for one in row.named}
    files = sorted((ROOT / "tests" / "engine").rglob("test_conformance_*.py"))
    assert len(files) == 5
    for file in files:
        path = file.relative_to(ROOT).as_posix()
        assert {f"{path}::{name}" for name in names_of_tests(path)} <= named


@pytest.mark.parametrize(
    "where, message",
    [
        ("", "neither a test nor a reason"),
        ("**Does not apply:** no", "neither a test nor a reason"),
        ("`tests/engine/no_such_file.py::test_it`", "no test"),
        ("`tests/test_conformance_table.py::test_no_such_name`", "no test"),
        ("`verify: manager/no-such-scenario`", "no recorded scenario"),
        ("`verify: nothing/salts`", "no recorded scenario"),
        ("`verify: manager/salts`<br>**without** this", "left out without a reason"),
        ("`verify: manager/salts`<br>**Does not apply:** since there is none", "does not apply"),
    ],
)
def test_a_row_that_names_nothing_is_noticed(where, message):
    (row,) = read_rows(f"| 1 | something | {where} |")
    assert message in (complaint(row) or "")
