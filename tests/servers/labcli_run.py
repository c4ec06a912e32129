"""labcli in this process, as a person calls it: what it printed, and how it ended."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import BytesIO, TextIOWrapper

import pytest


@dataclass(frozen=True)
class Ended:
    """What a run of labcli left."""

    exit_code: int
    stdout: str
    stderr: str


@cache
def _command():
    """labcli as Typer builds it: once, because that takes longer than most runs in tests."""
    from typer.main import get_command

    from labcli.main import app

    return get_command(app)


def labcli(*arguments: str, key: str = "") -> Ended:
    """Run it, with an API key in the environment or none."""
    stdout, stderr = (TextIOWrapper(BytesIO(), encoding="utf-8") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.setenv("LABCLI_API_KEY", key)
        with pytest.raises(SystemExit) as ended:
            _command().main(list(arguments), prog_name="labcli")
    for stream in (stdout, stderr):
        stream.flush()
    return Ended(ended.value.code, *(stream.buffer.getvalue().decode("utf-8") for stream in (stdout, stderr)))


def only_line(text: str) -> str:
    """The one line that a failure is told in."""
    lines = text.splitlines()
    assert len(lines) == 1 and lines[0].startswith("labcli: ") and len(lines[0]) < 700, text
    return lines[0]
