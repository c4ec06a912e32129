"""`labcli verify`: is our engine exact? What the real ones did, done again by ours and compared.

    labcli verify
    labcli verify --golden my-recordings/
    labcli verify --against vllm --vllm-python ~/vllm/bin/python --requests 2000

A comparison that breaks off (vLLM's process ended, or hung; Ctrl-C) shows what was compared before it, then the failure's line.
With --json that line is "error", null otherwise.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Optional

import typer

from labcli.shared_options import VllmPython

_REQUESTS = 1_000


def verify(
    golden: Annotated[
        Optional[str], typer.Option(metavar="FOLDER", help="Recordings of the same schema. [default: those that labcli ships]")
    ] = None,
    against: Annotated[
        Optional[str], typer.Option(metavar="PEER", help="vllm: fresh random workloads, by the real engine and by ours.")
    ] = None,
    vllm_python: VllmPython = None,
    requests: Annotated[
        Optional[int], typer.Option(help=f"Random requests for manager and scheduler in each pool, in fifties. [default: {_REQUESTS}]")
    ] = None,
    seed: Annotated[Optional[int], typer.Option(help="Decides the workloads. [default: a new one each time]")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> int:
    """Replay what vLLM and SGLang did, and compare.

    In one thing the engine departs from vLLM 0.32.0 on purpose (blocks of a refunded victim are not findable); the replay
    does as vLLM does.
    """
    from labcli.fault import UsageFault

    if against not in (None, "vllm"):
        raise UsageFault(f"--against is {against!r}", "vllm")
    if against is None:
        for option, value in {"--vllm-python": vllm_python, "--requests": requests, "--seed": seed}.items():
            if value is not None:
                raise UsageFault(f"{option} means nothing without --against vllm", f"--against vllm {option} VALUE")
        return _verify_recorded(golden, json_)
    if golden is not None:
        raise UsageFault("--golden means nothing with --against vllm", "one of the two")
    if requests is not None and not 1 <= requests <= 1_000_000:
        raise UsageFault(f"--requests is {requests}", "a whole number from 1 to 1000000")
    if seed is not None and not 0 <= seed < 2**63:
        raise UsageFault(f"--seed is {seed}", f"a whole number from 0 to {2**63 - 1}")
    return _verify_live(vllm_python, _REQUESTS if requests is None else requests, seed, json_)


def _verify_recorded(golden: str | None, as_json: bool) -> int:
    import time

    from labcli.progress_bar import ProgressBar
    from labcli.render.verification import print_verification, write_verification_json
    from labs.conformance.golden import RECORDED_DIR
    from labs.conformance.verification import verify_folder

    begin = time.perf_counter()
    with ProgressBar() as bar:
        verification = verify_folder(RECORDED_DIR if golden is None else golden, lambda label: bar.advance(label, 1))
    if as_json:
        write_verification_json(verification)
    else:
        print_verification(verification, time.perf_counter() - begin)
    return _tell_differences(verification.differences)


def _verify_live(vllm_python: str | None, num_requests: int, seed: int | None, as_json: bool) -> int:
    import random

    from labcli.fault import fault_of
    from labcli.progress_bar import ProgressBar
    from labcli.render.verification import print_live_verification, write_live_json
    from labs.conformance.live_verification import LiveVerification
    from labs.peers.vllm_recorder import VllmRecorder

    live = LiveVerification(num_requests, random.SystemRandom().randrange(2**31) if seed is None else seed)
    failure: BaseException | None = None
    with ProgressBar() as bar:
        bar.loading("starting vLLM", 0, 1)
        try:
            with VllmRecorder(vllm_python) as recorder:
                bar.loading("starting vLLM", 1, 1)
                version = recorder.version
                bar.expect(live.num_scenarios)
                live.run(recorder, lambda label: bar.advance(label, 1))
        except (Exception, KeyboardInterrupt) as error:
            if not live.parts:
                raise
            failure = error  # told behind what was compared before it
    if as_json:
        write_live_json(live, version, None if failure is None else fault_of(failure).line.removeprefix("labcli: "))
    else:
        print_live_verification(live, version, is_whole=failure is None)
    exit_code = _tell_differences(live.differences)
    if failure is not None:
        raise failure
    return exit_code


def _tell_differences(differences: Any) -> int:
    """Each on a line of stderr; the exit code."""
    for difference in differences:
        print(f"labcli: {difference}", file=sys.stderr)
    return 1 if differences else 0
