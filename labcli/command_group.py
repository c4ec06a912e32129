"""CommandGroup: the group of labcli's commands, which ends every failure in one line and an exit code."""

from __future__ import annotations

import sys
import traceback
from typing import Any, NoReturn, Sequence

from typer.core import TyperGroup

from labcli.fault import UsageFault, fault_of


class CommandGroup(TyperGroup):
    """Runs a command; a command may return its exit code (None: 0) or raise anything at all."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **settings: Any) -> NoReturn:
        """As Typer's `main`, except that no exception gets out and --debug is accepted at any place."""
        typed = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in typed
        settings["standalone_mode"] = False  # else Typer prints errors itself, over several lines
        try:
            result = super().main([one for one in typed if one != "--debug"], *more, **settings)
        except SystemExit:
            raise
        except BaseException as error:
            if debug:
                traceback.print_exception(error)
            fault = fault_of(error)
            _print_line(fault.line)
            sys.exit(fault.exit_code)
        if result == 130:  # Typer's answer to Ctrl-C in a command that has nothing to save
            _print_line("labcli: interrupted")
        sys.exit(result if isinstance(result, int) else 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        # Completion asks with half-typed names; those are no mistake.
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise UsageFault(f"no command {args[0]!r}", ", ".join(known))
        return super().resolve_command(ctx, args)


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
