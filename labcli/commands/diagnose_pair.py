"""`labcli diagnose-pair`: two requests; what the second reuses of the first, where they part, and what that costs.

    labcli diagnose-pair a.json b.json
    labcli diagnose-pair a.txt b.txt --model Qwen/Qwen3-8B --show-text
    labcli diagnose-pair a.json - --block-size 784 < b.json
    labcli diagnose-pair a.json b.json --page-size 16 --json

A request is a file: text; chat messages or token ids as JSON; an OpenAI request body. A JSON object may carry
"cache_salt", "lora", "images" and "tools". Salts and prompt text are not shown; --show-text shows the text around the
difference.
"""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from labcli.shared_options import CacheDir

_BLOCK_SIZE, _PAGE_SIZE, _MODEL, _ALGORITHM = 16, 1, "smollm2", "sha256"
_MAX_UNIT = 65_536


def diagnose_pair(
    first: Annotated[str, typer.Argument(metavar="A", help="The request that was served first: a file, or - for stdin.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The request that should have reused it.")],
    block_size: Annotated[
        Optional[int], typer.Option(help=f"Tokens in a block of the hash cache (vLLM). [default: {_BLOCK_SIZE}]")
    ] = None,
    page_size: Annotated[
        Optional[int],
        typer.Option(help=f"Tokens in a page of the radix cache (SGLang); one size alone asks that cache. [default: {_PAGE_SIZE}]"),
    ] = None,
    drafter: Annotated[bool, typer.Option("--drafter", help="vLLM runs a speculative drafter (EAGLE, MTP).")] = False,
    algorithm: Annotated[
        Optional[str], typer.Option(metavar="NAME", help=f"Hash that names the blocks shown. [default: {_ALGORITHM}]")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Whose tokenizer and chat template read text and messages; token ids need none.")
    ] = _MODEL,
    cache_dir: CacheDir = None,
    show_text: Annotated[bool, typer.Option("--show-text", help="Show the prompts' text around the difference.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON on stdout.")] = False,
) -> int:
    """Say why one request did not reuse another's K/V.

    Exit codes: 0 diagnosed, whatever was found; 2 a request that cannot be read.
    """
    from labcli.fault import UsageFault

    if first == second == "-":
        raise UsageFault("A and B are both '-'", "a file for one of them")
    settings = _settings(block_size, page_size, drafter, algorithm)

    from labcli.render.pair_diagnosis import print_report, write_report_json
    from labs.diagnose.request_pair import diagnose_files

    def open_tokenizer() -> Any:
        from engine.model import tokenizer as model_tokenizer

        return model_tokenizer.open_tokenizer(model, cache_dir)

    report = diagnose_files((first, second), settings, open_tokenizer, show_text=show_text)
    if json_:
        write_report_json(report)
    else:
        print_report(report)
    return 0


def _settings(block_size: int | None, page_size: int | None, drafter: bool, algorithm: str | None) -> Any:
    """Both caches by their defaults; or those whose size was given."""
    from engine.config import HASH_ALGORITHMS
    from labcli.fault import UsageFault
    from labs.diagnose.request_pair import CacheSettings

    for option, value in (("--block-size", block_size), ("--page-size", page_size)):
        if value is not None and not 1 <= value <= _MAX_UNIT:
            raise UsageFault(f"{option} is {value}", f"a whole number from 1 to {_MAX_UNIT}")
    if algorithm is not None and algorithm not in HASH_ALGORITHMS:
        raise UsageFault(f"--algorithm is {algorithm!r}", ", ".join(HASH_ALGORITHMS))
    if block_size is None and page_size is None:
        block_size, page_size = _BLOCK_SIZE, _PAGE_SIZE
    if block_size is None:
        for option, given in (("--drafter", drafter), ("--algorithm", algorithm is not None)):
            if given:
                raise UsageFault(f"{option} means nothing with --page-size alone", f"{option} with --block-size")
    return CacheSettings(block_size, page_size, algorithm or _ALGORITHM, drafter)
