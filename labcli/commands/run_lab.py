"""`labcli run-lab LAB`: predict, run, compare, record.

    labcli run-lab 04
    labcli run-lab hit-rate --target sim --set num_requests=20
    labcli run-lab 04 --quick --json > record.json
    labcli run-lab all --target sim
    labcli run-lab 04 --target http://127.0.0.1:8000

On a server its one cache is asked as it is, with requests of random token ids; nothing in it is changed but its content,
which is emptied where it has an endpoint for that, for everybody who uses it: --isolation rename leaves it alone. A key comes
from the environment variable LABCLI_API_KEY.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Optional

import typer

from labcli.shared_options import CacheDir, NoSave, RecordAsJson, ResultsDir


def _complete_lab(incomplete: str) -> list[tuple[str, str]]:
    from labs.catalog import find_labs

    labels = [(f"{entry.number:02d}", entry.name) for entry in find_labs()]
    return labels + [(name, number) for number, name in labels] + [("all", "every lab, one after the other")]


def _complete_target(incomplete: str) -> list[tuple[str, str]]:
    return [
        ("engine", "a real model in this process"),
        ("sim", "the same scheduler and caches, no tensors"),
        ("http://127.0.0.1:8000", "a server of vLLM, SGLang or labcli serve"),
    ]


def run_lab(
    lab: Annotated[
        str,
        typer.Argument(
            metavar="LAB", help='Number, name or part of a name: 04, "hit-rate"; or all.', autocompletion=_complete_lab
        ),
    ],
    target: Annotated[
        str, typer.Option(help="engine (a real model here), sim (no tensors) or a server's URL.", autocompletion=_complete_target)
    ] = "engine",
    set_: Annotated[
        Optional[list[str]], typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the lab; repeatable.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The lab's smallest size.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The lab's full size.")] = False,
    model: Annotated[
        Optional[str],
        typer.Option(help="smollm2, synthetic:<shape>, a folder or a hub id; with sim a shape's name; with a server a name it lists."),
    ] = None,
    dtype: Annotated[Optional[str], typer.Option(help="auto, bfloat16, float16 or float32.")] = None,
    device: Annotated[Optional[str], typer.Option(help="auto, cpu or cuda.")] = None,
    gpu: Annotated[Optional[str], typer.Option(metavar="NAME", help="The GPU whose time sim computes.")] = None,
    concurrency: Annotated[
        Optional[str], typer.Option(metavar="N", help="Requests at once, where a lab sends many to a server. [default: 64]")
    ] = None,
    isolation: Annotated[
        Optional[str],
        typer.Option(
            metavar="WAY",
            help="Between phases: auto empties the server's cache, for everybody who uses it; reset fails where that cannot be; "
            "rename leaves it and sends other token ids. [default: auto]",
        ),
    ] = None,
    rate: Annotated[Optional[str], typer.Option(metavar="R", help="Requests a second sent to a server, at most.")] = None,
    max_requests: Annotated[
        Optional[str], typer.Option(metavar="N", help="Most requests a run sends to a server. [default: 20,000]")
    ] = None,
    max_minutes: Annotated[
        Optional[str], typer.Option(metavar="M", help="Longest time a run may take on a server. [default: 60]")
    ] = None,
    timeout: Annotated[
        Optional[str], typer.Option(metavar="S", help="Seconds to wait for a byte from a server. [default: 300]")
    ] = None,
    results_dir: ResultsDir = "results",
    cache_dir: CacheDir = None,
    json_: RecordAsJson = False,
    no_save: NoSave = False,
) -> int:
    """Run a lab: predict, measure, compare, record.

    On a server that can empty its cache, a run does so between phases, for everybody who uses it. Where others must not be
    disturbed, --isolation rename empties nothing.
    """
    from labs.catalog import find_labs, lookup

    target = target.strip()
    entries = find_labs() if lab.strip().lower() == "all" else [lookup(lab)]
    if lab.strip().lower() == "all" and set_:
        _refuse_set()
    kind = _kind_of(target)
    for_server = {
        "--concurrency": concurrency, "--isolation": isolation, "--rate": rate, "--max-requests": max_requests,
        "--max-minutes": max_minutes, "--timeout": timeout,
    }  # fmt: skip
    for_engine = {"--dtype": dtype, "--device": device}
    _check_meaning(kind, {"engine": for_engine, "sim": {"--gpu": gpu}, "server": for_server})

    from labcli.lab_config import build_lab_config, parse_assignments
    from labcli.lab_run import LabRun
    from labcli.results_store import ResultsStore

    server = None
    if kind == "server":
        from labcli.server_options import read_server_run

        server = read_server_run(target, model=model, options=for_server)
    engine_config = _engine_config(target, model=None if server else model, dtype=dtype, device=device)
    store = None if no_save else ResultsStore(results_dir)
    runs = []
    for entry in entries:
        loaded = entry.load()
        lab_config = build_lab_config(loaded, quick=quick, full=full, assignments=set_ or ())
        if len(entries) > 1 and kind not in loaded.targets:
            continue  # asked for all, those that make sense are meant
        _check_target(loaded, kind)
        typed = frozenset(parse_assignments(loaded.config_type, set_ or (), f"lab {loaded.number:02d}"))
        _check_fields(loaded, kind, typed)
        runs.append(LabRun(entry, loaded, lab_config, target, engine_config, gpu, cache_dir, store, server, typed))
    return _run_one(runs[0], json_) if lab.strip().lower() != "all" else _run_all(runs, json_)


def _refuse_set() -> None:
    from labcli.fault import UsageFault

    raise UsageFault("--set names a field of one lab, and all labs were asked for", "--set with one lab; --quick or --full with all")


def _run_one(run: Any, as_json: bool) -> int:
    from labcli.render.record_json import write_json

    try:
        finished = run.execute()
    except Exception as error:
        partial = getattr(error, "finished_run", None)
        if partial is not None and as_json:
            write_json(partial.record)
        elif partial is not None and isinstance(error, OSError):
            _show(partial.record, None, False)  # it could not be saved: at least it is seen
        raise
    return _show(finished.record, finished.path, as_json)


def _run_all(runs: list[Any], as_json: bool) -> int:
    """Run labs one after the other; a failure ends its lab, not the others. 0 when all were as predicted."""
    from labcli.all_labs_run import run_labs
    from labcli.render.all_labs import AllLabsTable
    from labcli.render.record_json import write_json_list

    table = AllLabsTable(shown=not as_json)
    outcomes: list[Any] = []
    try:
        for outcome in run_labs(runs):
            outcomes.append(outcome)
            table.add(outcome)
    finally:
        table.close()
        if as_json:
            write_json_list([outcome.record for outcome in outcomes if outcome.record is not None])
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def _kind_of(target: str) -> str:
    """ "engine", "sim" or "server". Raises UsageFault for anything else."""
    from labcli.fault import UsageFault
    from labs.servers.server_address import is_server_url

    if target in ("engine", "sim"):
        return target
    if is_server_url(target):
        return "server"
    raise UsageFault(f"no target {target!r}", "engine, sim or a server's URL, such as http://127.0.0.1:8000")


def _check_target(lab: Any, kind: str) -> None:
    from labcli.fault import UsageFault
    from labs.catalog import find_labs

    if kind in lab.targets:
        return
    others = ", ".join(lab.targets)
    if kind == "server":
        able = [f"{entry.number:02d}" for entry in find_labs() if "server" in entry.load().targets]
        raise UsageFault(f"lab {lab.number:02d} does not run on a server", f"labs {', '.join(able)}; this one with --target {others}")
    raise UsageFault(f"lab {lab.number:02d} does not run on {kind!r}", others)


def _check_fields(lab: Any, kind: str, typed: frozenset[str]) -> None:
    """A field that a server would ignore must not look like a condition of the run."""
    from dataclasses import fields

    from labcli.fault import UsageFault

    for name in lab.in_process_fields if kind == "server" else ():
        if name in typed:
            known = [one.name for one in fields(lab.config_type) if one.name not in lab.in_process_fields]
            raise UsageFault(f"{name} means nothing on a server, whose cache is as it is", ", ".join(known))


def _check_meaning(kind: str, by_target: dict[str, dict[str, str | None]]) -> None:
    """An option that the target would ignore must not look like a condition of the run."""
    from labcli.fault import UsageFault

    for other, options in by_target.items():
        for option, value in options.items():
            if value is not None and other != kind:
                shown = "URL" if other == "server" else other
                what = "a server" if kind == "server" else f"--target {kind}"
                raise UsageFault(f"{option} means nothing with {what}", f"{option} with --target {shown}")


def _engine_config(target: str, **typed: str | None) -> Any:
    from engine.config import EngineConfig
    from labs.targets.open_target import SIM_MODEL

    given = {name: value for name, value in typed.items() if value is not None}
    if target == "sim":
        given.setdefault("model", SIM_MODEL)  # a shape the cost model knows; no weights are needed
    return EngineConfig(**given)  # type: ignore[arg-type]


def _show(record: Any, path: Any, as_json: bool) -> int:
    """Print the record, and give the exit code."""
    if as_json:
        from labcli.render.record_json import write_json

        write_json(record)
    else:
        from labcli.render.lab_report import print_lab_report

        print_lab_report(record, path)
    if record.error is not None:
        print(f"labcli: {record.error}", file=sys.stderr)
        return 1
    if not record.missed:
        return 0
    first = record.missed[0]
    name = ", ".join(part for part in (first.group, first.row, first.name) if part)
    print(
        f"labcli: {len(record.missed)} of {record.num_predictions} predictions were not met; the first: {name}: "
        f"predicted {first.predicted.value:,}, measured {first.deviating_sample:,}",
        file=sys.stderr,
    )
    return 1
