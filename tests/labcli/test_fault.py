"""Every failure is one line that a person can act on and a terminal does not obey."""

from __future__ import annotations

import errno

import pytest

from engine.errors import ModelNotFound
from labcli.fault import UsageFault, fault_of


def test_a_full_disk_behind_stdout_is_told_without_a_traceback():
    fault = fault_of(OSError(errno.ENOSPC, "No space left on device"))
    assert (fault.line, fault.exit_code) == ("labcli: the output: No space left on device", 1)


def test_control_characters_of_what_was_typed_do_not_reach_the_terminal():
    fault = fault_of(UsageFault("no lab '\x1b[31mred\x9b'", "04\nor 05"))
    assert fault.line == "labcli: no lab '\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}'; accepted: 04 or 05"


def test_a_model_that_is_not_here_is_bad_usage():
    assert fault_of(ModelNotFound("no model 'nope'; accepted: smollm2")).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["bench", "engine", "--trials", "1e3"], "--trials is '1e3'; accepted: a whole number"),
        (["hash-bench", "--num-blocks", "two"], "--num-blocks is 'two'; accepted: a whole number"),
    ],
)
def test_a_number_that_cannot_be_read_is_named_with_its_option(labcli_command, arguments, line):
    result = labcli_command(*arguments)
    assert result.exit_code == 2 and result.stderr == f"labcli: {line}\n"
