"""`labcli explain` teaches a lab without running it."""

from __future__ import annotations

import pytest

from labs.catalog import find_labs
from labs.lab_laws import laws_of


@pytest.mark.parametrize("entry", find_labs(), ids=lambda entry: entry.label)
def test_every_lab_is_explained_with_its_laws_and_fields(labcli_command, entry):
    result = labcli_command("explain", f"{entry.number:02d}")
    assert result.exit_code == 0 and result.stderr == ""
    lab = entry.load()
    assert result.stdout.startswith(f"Lab {entry.number:02d}: ")
    for part in ("Background", "Predicted", "How to read it", "Sources", "Laws", "What --set changes", "labcli run-lab"):
        assert part in result.stdout
    assert all(name in result.stdout for name in vars(lab.quick))
    assert laws_of(entry.path)
    assert "{" not in "".join(law.formula for law in laws_of(entry.path))


def test_a_law_is_shown_with_the_names_that_its_text_explains(labcli_command):
    text = labcli_command("explain", "hit-rate").stdout
    assert "reuse = unit·⌊min(match_tokens, prompt_tokens − 1)/unit⌋" in text
    assert "num_requests" in text and "of the shared series" in text


def test_an_unknown_lab_is_named(labcli_command):
    result = labcli_command("explain", "nope")
    assert result.exit_code == 2 and result.stderr.startswith("labcli: no lab 'nope'; accepted: 01 hash-cost")
