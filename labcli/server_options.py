"""Server options: what was typed about a server, and the key from the environment, as a ServerRun."""

from __future__ import annotations

import os
from typing import Mapping

from labcli.fault import UsageFault
from labcli.typed_number import read_number, read_whole
from labs.servers.server_address import ServerAddress
from labs.servers.server_client import SendLimits
from labs.servers.server_run import ISOLATIONS, MAX_CONCURRENCY, ServerRun

KEY_VARIABLE = "LABCLI_API_KEY"  # of the environment: a key on a command line is seen by everybody on the machine


def read_server_run(target: str, *, model: str | None, options: Mapping[str, str | None]) -> ServerRun:
    """How a run uses the server at `target`, from the options of `labcli run-lab` by their names; None where not typed.

    Raises UsageFault for a value that is none, AddressError for an address that is none.
    """
    typed = {name: value for name, value in options.items() if value is not None}
    limits = {}
    if "--timeout" in typed:
        limits["timeout_s"] = read_number("--timeout", typed["--timeout"], 1, 86_400, " of seconds")
    if "--max-requests" in typed:
        limits["max_requests"] = read_whole("--max-requests", typed["--max-requests"], 1, 10_000_000)
    if "--max-minutes" in typed:
        limits["max_seconds"] = 60 * read_number("--max-minutes", typed["--max-minutes"], 0.1, 10_080)
    fields = {}
    if "--concurrency" in typed:
        fields["concurrency"] = read_whole("--concurrency", typed["--concurrency"], 1, MAX_CONCURRENCY)
    if "--rate" in typed:
        fields["rate"] = read_number("--rate", typed["--rate"], 0.001, 100_000, " of requests a second")
    if "--isolation" in typed:
        if typed["--isolation"] not in ISOLATIONS:
            raise UsageFault(f"--isolation is {typed['--isolation']!r}", ", ".join(ISOLATIONS))
        fields["isolation"] = typed["--isolation"]
    if model is not None and not model.strip():
        raise UsageFault(f"--model is {model!r}", "a name that the server lists")
    return ServerRun(
        ServerAddress.of(target),
        api_key=read_api_key(),
        model=model,
        limits=SendLimits(**limits),
        **fields,
    )


def read_api_key() -> str | None:
    """The key for servers, from the environment. Raises UsageFault for what no header can hold, without showing it."""
    # An empty variable is none: a shell's `export LABCLI_API_KEY=` should not send an empty key.
    key = os.environ.get(KEY_VARIABLE, "").strip(" ") or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UsageFault(f"the environment variable {KEY_VARIABLE} holds what no header can", "printable ASCII characters")
    return key
