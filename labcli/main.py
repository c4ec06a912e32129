"""The Typer app: adds each command, one file each in `commands/`.

Nothing heavy is imported here or at the top of a command's file, so that `labcli --help` and shell completion
answer at once; a command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from labcli.command_group import CommandGroup
from labcli.commands.bench import bench
from labcli.commands.diagnose_pair import diagnose_pair
from labcli.commands.explain import explain
from labcli.commands.hash_bench import hash_bench
from labcli.commands.labs import list_labs
from labcli.commands.predict import predict
from labcli.commands.probe import probe
from labcli.commands.results import results
from labcli.commands.run_lab import run_lab
from labcli.commands.serve import serve
from labcli.commands.verify import verify

# Plain help text: rich's panels would double the time `--help` takes.
app = typer.Typer(name="labcli", cls=CommandGroup, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("run-lab")(run_lab)
app.command("labs")(list_labs)
app.command("serve")(serve)
app.command("explain")(explain)
app.command("hash-bench")(hash_bench)
app.command("verify")(verify)
app.command("diagnose-pair")(diagnose_pair)
app.command("probe")(probe)
app.add_typer(bench, name="bench")
app.add_typer(results, name="results")
app.add_typer(predict, name="predict")


def _print_version(asked: bool) -> None:
    if asked:
        import labcli

        print(f"labcli {labcli.__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    # Taken out of the arguments by CommandGroup, wherever it stands; declared here for the help text.
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure; any command takes it.")] = False,
) -> None:
    """Labs that predict, measure and explain prefix caching in LLM serving.

    Exit codes: 0 done, 1 the run failed or a prediction was not met, 2 bad usage, 130 interrupted.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """The console entry point."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal without UTF-8 shows "?" for a sign it lacks, instead of failing after a long run.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="labcli")
    except SystemExit as end:
        if end.code == 130:
            # Python would end by signal, without our exit code, after a Ctrl-C that met it inside an `exec`
            # (each dataclass is made by one). All is said and saved by now.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130)
        raise
