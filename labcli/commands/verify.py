"""`labcli verify`: is our engine exact? Recorded scenarios of the real ones, replayed.

    labcli verify
    labcli verify --golden my-recordings/
"""

from __future__ import annotations

import sys
from typing import Annotated, Optional

import typer


def verify(
    golden: Annotated[
        Optional[str], typer.Option(metavar="FOLDER", help="Recordings of the same schema. [default: those that labcli ships]")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> int:
    """Replay what vLLM and SGLang were recorded doing, and compare."""
    import time

    from labcli.progress_bar import ProgressBar
    from labcli.render.verification import print_verification, write_verification_json
    from labs.conformance.golden import RECORDED_DIR
    from labs.conformance.verification import verify_folder

    begin = time.perf_counter()
    with ProgressBar() as bar:
        verification = verify_folder(RECORDED_DIR if golden is None else golden, lambda label: bar.advance(label, 1))
    if json_:
        write_verification_json(verification)
    else:
        print_verification(verification, time.perf_counter() - begin)
    for difference in verification.differences:
        print(f"labcli: {difference}", file=sys.stderr)
    return 1 if verification.differences else 0
