"""Fault: the one line and the exit code that a failure ends with.

    exit 0     done; every prediction was met
    exit 1     the run failed, or a prediction was not met
    exit 2     bad usage: nothing was run
    exit 130   interrupted with Ctrl-C

The line reads `labcli: <what was wrong>; accepted: <...>`. A traceback is for people who debug labcli: --debug.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import typer

from labcli.printable import printable


class UsageFault(ValueError):
    """What a person typed cannot be used; nothing was run."""

    def __init__(self, what: str, accepted: str) -> None:
        super().__init__(f"{what}; accepted: {accepted}")


class Interrupted(Exception):
    """Ctrl-C ended a run; the message says what became of its measurements."""


@dataclass(frozen=True)
class Fault:
    """How labcli ends after a failure."""

    line: str
    exit_code: int


def fault_of(error: BaseException) -> Fault:
    """The line and exit code of any exception; notes added to it (`add_note`) end the line."""
    what, exit_code = _what_and_code(error)
    parts = [what, *getattr(error, "__notes__", ())]
    # One line, whatever the message holds: scripts and logs read line by line, and a terminal obeys control characters.
    return Fault("labcli: " + printable(" ".join("; ".join(parts).split())), exit_code)


def _what_and_code(error: BaseException) -> tuple[str, int]:
    # Imported here: an error of these rooms only exists once they are loaded, and `--help` must not load them.
    from engine.errors import ConfigError, EngineError, ModelNotFound
    from labs.catalog import UnknownLab
    from labs.conformance.golden import GoldenError
    from labs.diagnose.prompt_file import PromptFileError
    from labs.peers.worker_process import PeerError, PeerUnavailable
    from labs.servers.server_address import AddressError
    from labs.targets.base import TargetError

    if isinstance(error, (Interrupted, KeyboardInterrupt)):
        return str(error) or "interrupted", 130
    if isinstance(error, typer.TyperException):
        return _typer_line(error), error.exit_code
    bad_usage = (
        UsageFault, ConfigError, ModelNotFound, UnknownLab, GoldenError, PromptFileError, PeerUnavailable, AddressError,
    )  # fmt: skip
    if isinstance(error, bad_usage):
        return str(error), 2
    if isinstance(error, (EngineError, TargetError, PeerError)):
        return str(error), 1
    if isinstance(error, OSError) and error.strerror:
        # Without a file name it is stdout that could not take what was printed.
        return f"{error.filename or 'the output'}: {error.strerror}", 1
    text = str(error)
    return f"{type(error).__name__}{': ' if text else ''}{text} (--debug shows where)", 1


def _typer_line(error: Any) -> str:
    """Typer's usage errors, in our form: what was wrong, then what this command accepts."""
    context = getattr(error, "ctx", None)
    parameter = getattr(error, "param", None)
    option_name = getattr(error, "option_name", None)
    what = error.format_message().strip().rstrip(".").replace("Invalid value for ", "")
    what = what[:1].lower() + what[1:] if not what.startswith("'-") else what
    unreadable = _unreadable_number(error)
    if unreadable is not None and parameter is not None:
        value, kind = unreadable
        return f"{max(parameter.opts, key=len)} is {value!r}; accepted: {kind}"
    if context is None:
        # Typer's two complaints about an option's value come without the command that has the option.
        value = " VALUE" if "requires" in what else ""
        return f"{what}; accepted: {option_name}{value}" if option_name else f"{what}; accepted: see labcli --help"
    if option_name is not None:
        names = ", ".join(_option_names(context.command))
        return f"{context.command_path} has no option {option_name}; accepted: {names}"
    if parameter is not None and parameter.opts[0].startswith("-"):
        value = parameter.metavar or parameter.display_type(context)
        return f"{what}; accepted: {parameter.opts[0]} {value}"
    usage = context.get_usage().removeprefix("Usage:").strip()
    return f"{what}; accepted: {usage}"


def _unreadable_number(error: Any) -> tuple[Any, str] | None:
    """What was typed where a number is wanted, and which kind; None for other complaints. Typer reads numbers by pydantic."""
    details = getattr(error.__cause__, "errors", None)
    first = details()[0] if callable(details) else {}
    kind = {"int_parsing": "a whole number", "int_from_float": "a whole number", "float_parsing": "a number"}.get(first.get("type", ""))
    return None if kind is None else (first.get("input"), kind)


def _option_names(command: Any) -> list[str]:
    return [name for one in command.params for name in one.opts if name.startswith("--")] + ["--help"]
