"""The list of labs loses no word at any width."""

import io

import pytest
from rich.console import Console

from labcli.render.lab_list import lab_table
from labs.catalog import find_labs


@pytest.mark.parametrize("width", [30, 40, 69, 70, 80, 160])
def test_every_lab_has_its_name_its_question_and_its_targets(width):
    labs = [entry.load() for entry in find_labs()]
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(lab_table(labs))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width and lines == [line.rstrip() for line in lines]
    text = " ".join(console.file.getvalue().split())
    for lab in labs:
        assert lab.name in text
        assert width >= 70 or f"{lab.number:02d} {lab.name} {lab.question} {', '.join(lab.targets)}" in text
    assert text.count(", ".join(labs[0].targets)) >= len(labs) - 1
