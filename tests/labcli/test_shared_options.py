"""Options that several commands have say the same everywhere."""

from __future__ import annotations

import pytest
import typer.main

from labcli.main import app


def commands(group):
    for command in group.commands.values():
        yield from commands(command) if hasattr(command, "commands") else [command]


def worded(option):
    return {
        (one.help, one.metavar, one.envvar)
        for command in commands(typer.main.get_command(app))
        for one in command.params
        if option in one.opts
    }


@pytest.mark.parametrize("option", ["--results-dir", "--cache-dir", "--no-save", "--vllm-python"])
def test_an_option_of_several_commands_is_worded_once(option):
    assert len(worded(option)) == 1


def test_folders_can_be_said_once_for_all_commands_by_the_environment():
    assert {envvar for option in ("--results-dir", "--cache-dir") for _, _, envvar in worded(option)} == {
        "LABCLI_RESULTS_DIR", "LABCLI_CACHE_DIR",
    }  # fmt: skip
