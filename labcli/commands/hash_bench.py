"""`labcli hash-bench`: what naming a block costs, per algorithm.

    labcli hash-bench
    labcli hash-bench --num-blocks 20000 --block-size 16 --algorithms sha256 xxhash
    labcli hash-bench --prompt chat.json --prefill "H100 SXM"
    labcli hash-bench --against vllm --vllm-python ~/vllm/bin/python
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Optional

import typer

from labcli.shared_options import CacheDir, NoSave, RecordAsJson, ResultsDir, VllmPython

_BLOCK_SIZE, _PROMPT_BLOCK_SIZE = 32, 16
_GPU, _SHAPE, _MODEL = "H100 SXM", "llama-3-8b", "smollm2"


def hash_bench(
    more_algorithms: Annotated[Optional[list[str]], typer.Argument(hidden=True, metavar="")] = None,
    num_blocks: Annotated[Optional[int], typer.Option(help="Blocks in the chain. [default: 10000]")] = None,
    block_size: Annotated[
        Optional[int], typer.Option(help=f"Tokens in a block. [default: {_BLOCK_SIZE}; {_PROMPT_BLOCK_SIZE} with --prompt]")
    ] = None,
    vocab_size: Annotated[Optional[int], typer.Option(help="Token ids are drawn from 0 up to this. [default: 32000]")] = None,
    seed: Annotated[Optional[int], typer.Option(help="Decides the token ids. [default: 0]")] = None,
    trials: Annotated[int, typer.Option(help="Measured rounds per algorithm.")] = 5,
    algorithms: Annotated[
        Optional[list[str]],
        typer.Option(metavar="NAME...", help="sha256, sha256_cbor, xxhash, xxhash_cbor; several, or with commas. [default: all]"),
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", metavar="FORM", help="table, or vllm: the lines of vLLM's own script.")
    ] = "table",
    prompt: Annotated[
        Optional[str], typer.Option(metavar="FILE", help="Name this prompt: text, JSON messages or JSON token ids.")
    ] = None,
    model: Annotated[
        Optional[str], typer.Option(help=f"Whose tokenizer reads the prompt, and what engine prefills it. [default: {_MODEL}]")
    ] = None,
    prefill: Annotated[
        Optional[str],
        typer.Option(metavar="WHERE", help=f"engine (measured here), or a GPU's name (cost model). [default: {_GPU}]"),
    ] = None,
    shape: Annotated[
        Optional[str], typer.Option(metavar="NAME", help=f"The model that this GPU prefills. [default: {_SHAPE}]")
    ] = None,
    against: Annotated[
        Optional[str], typer.Option(metavar="PEER", help="vllm: time vLLM's own function in turns, names compared.")
    ] = None,
    vllm_python: VllmPython = None,
    results_dir: ResultsDir = "results",
    cache_dir: CacheDir = None,
    json_: RecordAsJson = False,
    no_save: NoSave = False,
) -> int:
    """Time the hashes that name blocks."""
    drawn = {"num_blocks": num_blocks, "vocab_size": vocab_size, "seed": seed}
    beside = {"--model": model, "--prefill": prefill, "--shape": shape}
    _check_words(format_, against, vllm_python, more_algorithms if not algorithms else None)
    _check_meaning(prompt is not None, format_, drawn, beside)

    config = _config(drawn, block_size, trials, [*(algorithms or ()), *(more_algorithms or ())], prompt is not None)

    from labcli.hash_run import HashRun
    from labcli.results_store import ResultsStore

    run = HashRun(
        config,
        None if no_save else ResultsStore(results_dir),
        None if prompt is None else _prompt_settings(prompt, model, prefill, shape, cache_dir),
        against_vllm=against is not None,
        vllm_python=vllm_python,
        with_growth=format_ == "table",
    )
    return _show(run.execute(), format_, json_)


def _check_words(format_: str, against: str | None, vllm_python: str | None, stray: list[str] | None) -> None:
    from labcli.fault import UsageFault

    if stray:
        raise UsageFault(f"unexpected {stray[0]!r}", "labcli hash-bench [OPTIONS]; see --help")
    if format_ not in ("table", "vllm"):
        raise UsageFault(f"--format is {format_!r}", "table, vllm")
    if against not in (None, "vllm"):
        raise UsageFault(f"--against is {against!r}", "vllm")
    if vllm_python is not None and against is None:
        raise UsageFault("--vllm-python means nothing without --against vllm", "--against vllm --vllm-python PATH")


def _check_meaning(has_prompt: bool, format_: str, drawn: dict[str, Any], beside: dict[str, Any]) -> None:
    """An option that would be ignored must not look like a condition of the run."""
    if not has_prompt:
        _refuse(beside, "without --prompt", "--prompt FILE, with text, messages or token ids")
        return
    options = {f"--{name.replace('_', '-')}": value for name, value in drawn.items()}
    _refuse(options, "with --prompt", "--block-size, --trials, --algorithms")
    _refuse({"--format vllm": format_ if format_ == "vllm" else None}, "with --prompt", "--format table")
    if beside["--prefill"] == "engine":
        _refuse({"--shape": beside["--shape"]}, "with --prefill engine", "--model, or --prefill with a GPU's name")


def _refuse(given: dict[str, Any], when: str, accepted: str) -> None:
    from labcli.fault import UsageFault

    for option, value in given.items():
        if value is not None:
            raise UsageFault(f"{option} means nothing {when}", accepted)


def _config(drawn: dict[str, Any], block_size: int | None, trials: int, algorithms: list[str], has_prompt: bool) -> Any:
    from labs.benches.hash_cost import Config

    fields = {name: value for name, value in drawn.items() if value is not None}
    fields["block_size"] = block_size if block_size is not None else _PROMPT_BLOCK_SIZE if has_prompt else _BLOCK_SIZE
    if algorithms:
        names = [name.strip() for one in algorithms for name in one.split(",")]
        fields["algorithms"] = tuple(dict.fromkeys(names))
    if has_prompt:
        fields["num_blocks"] = 1  # nothing is drawn
    return Config(**fields, trials=trials)


def _prompt_settings(path: str, model: str | None, prefill: str | None, shape: str | None, cache_dir: str | None) -> Any:
    from engine.cost_model import gpu_by_name, model_shape
    from labcli.hash_run import PromptSettings
    from labs.diagnose.prompt_file import read_prompt_file

    where, whose = _GPU if prefill is None else prefill, _SHAPE if shape is None else shape
    if where != "engine":
        gpu_by_name(where), model_shape(whose)  # a wrong name is reported before anything is read
    prompt = read_prompt_file(path)
    if prompt.token_ids is not None and where != "engine":
        _refuse({"--model": model}, "with token ids and a GPU of the cost model", "--shape, or --prefill engine")
    return PromptSettings(prompt, _MODEL if model is None else model, where, whose, cache_dir)


def _show(result: Any, format_: str, as_json: bool) -> int:
    """Print what was found, and give the exit code."""
    from labcli.render.hash_table import print_hash_result, print_vllm_lines
    from labcli.render.record_json import write_json

    if as_json:
        write_json(result.record)
    elif format_ == "vllm":
        print_vllm_lines(result)
    else:
        print_hash_result(result)
    for missed in result.record.missed:
        print(
            f"labcli: {missed.row}: {missed.value:,} of {missed.predicted.value:,} names equal vLLM {result.peer_version}'s",
            file=sys.stderr,
        )
    return 1 if result.record.missed else 0
