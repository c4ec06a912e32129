"""`labcli predict`: the laws on their own, for any numbers; nothing is run.

    labcli predict reuse --prompt 2000 --block-size 16 --repeat
    labcli predict prefill --model llama-3-8b --gpu h100 --prompt 2200 --cached 2000 --rate 20
    labcli predict pool --model llama-3-8b --memory 52.32GiB
    labcli predict collision --blocks 1e9
    labcli predict models
"""

from __future__ import annotations

import re
from reprlib import Repr
from typing import Annotated, Any, Optional

import typer

from labcli.command_group import CommandGroup

_HELP = "The laws on their own, for any numbers; nothing is run."
predict = typer.Typer(cls=CommandGroup, rich_markup_mode=None, help=_HELP)

Explain = Annotated[bool, typer.Option("--explain", help="Each number's formula with its numbers, and the sources.")]
Json = Annotated[bool, typer.Option("--json", help="Print inputs and results as a JSON object, and nothing else.")]
Model = Annotated[Optional[str], typer.Option(metavar="NAME", help="A model of `labcli predict models`.")]
Config = Annotated[Optional[str], typer.Option(metavar="PATH", help="Instead: a config.json; its parameters are counted.")]

MOST_TOKENS = 1_000_000_000
LEAST = 1e-6  # of a share or a rate: what is smaller was mistyped, and its inverse is no time that anybody waits
_SIZE = re.compile(r"([0-9.,_]+(?:e[0-9]+)?)\s*((?:[kmgt]i?)?)(b|bytes)?", re.IGNORECASE | re.ASCII)
_BRIEF = Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 80
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_DTYPE_BYTES = {"bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp8": 1, "fp32": 4, "float32": 4}


@predict.callback()
def _predict() -> None:
    """The laws on their own, for any numbers; nothing is run."""


@predict.command("reuse")
def predict_reuse(
    prompt: Annotated[str, typer.Option(metavar="L", help="Tokens of the prompt.")],
    match: Annotated[Optional[str], typer.Option(metavar="M", help="Of them the first M are in the cache.")] = None,
    repeat: Annotated[bool, typer.Option("--repeat", help="All of them are: the same prompt came before.")] = False,
    block_size: Annotated[Optional[str], typer.Option(metavar="B", help="Tokens of a hash cache's block. [default: 16]")] = None,
    page_size: Annotated[Optional[str], typer.Option(metavar="P", help="Instead: tokens of a page of the radix cache.")] = None,
    unit: Annotated[
        Optional[str], typer.Option(metavar="U", help="Instead: what hits are a multiple of, as hybrid models report it.")
    ] = None,
    drafter: Annotated[bool, typer.Option("--drafter", help="Beside a speculative drafter (EAGLE, MTP).")] = False,
    requests: Annotated[Optional[str], typer.Option(metavar="N", help="N such requests that differ behind the match.")] = None,
    outputs: Annotated[Optional[str], typer.Option(metavar="K", help="Generated tokens: what the next turn reuses.")] = None,
    explain: Explain = False,
    json_: Json = False,
) -> None:
    """What a prompt takes from the cache, and what it loses."""
    from labcli.fault import UsageFault
    from labs.estimates.reuse import estimate_reuse

    if match is not None and repeat:
        raise UsageFault("--match means nothing with --repeat", "one of them; a repeat matches all of the prompt")
    if match is None and not repeat and outputs is None:
        raise UsageFault("nothing is known of the cache", "--repeat, --match M or --outputs K")
    if requests is not None and match is None and not repeat:
        raise UsageFault("--requests means nothing without a match", "--match M, or --repeat")
    length = _count("--prompt", prompt)
    matched = length if repeat else None
    if match is not None:
        matched = _count("--match", match, low=0, high=length, why=", the tokens of --prompt")
    num_requests = None if requests is None else _count("--requests", requests)
    output_tokens = None if outputs is None else _count("--outputs", outputs)
    granularity = _granularity(block_size, page_size, unit)
    if drafter and granularity.noun == "page":
        raise UsageFault("--drafter means nothing with --page-size", "--block-size or --unit: the law is vLLM's")
    if drafter and outputs is not None:
        raise UsageFault("--drafter means nothing with --outputs", "one of them")
    estimate = estimate_reuse(
        length, matched, granularity, drafter=drafter, num_requests=num_requests, output_tokens=output_tokens
    )
    _show(estimate, explain, json_)


@predict.command("prefill")
def predict_prefill(
    gpu: Annotated[str, typer.Option(metavar="NAME", help="A GPU of `labcli predict models`: h100, a100 80gb, l4.")],
    prompt: Annotated[str, typer.Option(metavar="L", help="Tokens of the prompt.")],
    model: Model = None,
    config: Config = None,
    cached: Annotated[str, typer.Option(metavar="M", help="Of them in the cache, as `labcli predict reuse` says.")] = "0",
    mfu: Annotated[str, typer.Option(metavar="SHARE", help="The share of the GPU's peak that is reached.")] = "0.45",
    rate: Annotated[Optional[str], typer.Option(metavar="R", help="Requests per second: does one GPU bear them?")] = None,
    explain: Explain = False,
    json_: Json = False,
) -> None:
    """What a prefill costs, cold and with the cache.

    Arithmetic, time, and the rate of requests that saturates the GPU.
    """
    from labcli.typed_number import read_number
    from labs.estimates.prefill import estimate_prefill

    length = _count("--prompt", prompt)
    in_cache = _count("--cached", cached, low=0, high=length - 1, why=": the last token is always computed")
    share = read_number("--mfu", mfu, LEAST, 1)
    per_s = None if rate is None else read_number("--rate", rate, LEAST, 1e9, ", of requests per second")
    _show(estimate_prefill(_shape(model, config), _gpu(gpu), share, length, in_cache, per_s), explain, json_)


@predict.command("pool")
def predict_pool(
    model: Model = None,
    config: Config = None,
    memory: Annotated[Optional[str], typer.Option(metavar="SIZE", help="Memory for K/V: 52.32GiB, 40GB, or bytes.")] = None,
    gpu: Annotated[Optional[str], typer.Option(metavar="NAME", help="Instead: what a GPU has left beside the weights.")] = None,
    utilization: Annotated[
        Optional[str], typer.Option(metavar="SHARE", help="Share of the GPU's memory. [default: 0.92, as vLLM 0.32.0]")
    ] = None,
    weight_dtype: Annotated[Optional[str], typer.Option(metavar="DTYPE", help="bf16, fp16, fp8 or fp32. [default: bf16]")] = None,
    kv_dtype: Annotated[str, typer.Option(metavar="DTYPE", help="bf16, fp16, fp8 or fp32.")] = "bf16",
    block_size: Annotated[Optional[str], typer.Option(metavar="B", help="Tokens of a block. [default: 16]")] = None,
    max_model_len: Annotated[
        Optional[str], typer.Option(metavar="TOKENS", help="Tokens of the longest request. [default: the model's]")
    ] = None,
    algorithm: Annotated[str, typer.Option(metavar="NAME", help="sha256, sha256_cbor, xxhash or xxhash_cbor.")] = "sha256",
    explain: Explain = False,
    json_: Json = False,
) -> None:
    """What a pool of K/V blocks holds.

    Blocks, tokens, requests at once, and the bytes of the blocks' names.
    """
    from labcli.fault import UsageFault
    from labs.estimates.pool import estimate_pool

    if (memory is None) == (gpu is None):
        raise UsageFault("--memory and --gpu are " + ("both missing" if gpu is None else "both given"), "one of them")
    _refuse_with_memory(memory, {"--utilization": utilization, "--weight-dtype": weight_dtype})
    granularity = _granularity(block_size, None, None)
    shape = _shape(model, config)
    length = shape.max_model_len if max_model_len is None else _count("--max-model-len", max_model_len)
    settings: dict[str, Any] = {"memory_bytes": None if memory is None else _memory_bytes(memory)}
    if gpu is not None:
        settings |= _gpu_settings(gpu, utilization or "0.92", weight_dtype or "bf16", shape)
    kv_bytes = _dtype_bytes("--kv-dtype", kv_dtype)
    _check_bits(algorithm)
    _check_holds_a_block(settings, shape, kv_bytes, granularity.size)
    _show(estimate_pool(shape, granularity, kv_bytes, algorithm, length, **settings), explain, json_)


@predict.command("collision")
def predict_collision(
    blocks: Annotated[str, typer.Option(metavar="N", help="Differently filled blocks: 1e9, 1,000,000.")],
    bits: Annotated[Optional[str], typer.Option(metavar="BITS", help="Bits of a digest.")] = None,
    algorithm: Annotated[
        Optional[str], typer.Option(metavar="NAME", help="Instead: sha256, xxhash, or either with _cbor. [default: both sizes]")
    ] = None,
    per_second: Annotated[Optional[str], typer.Option(metavar="R", help="Blocks named per second: how long it takes.")] = None,
    explain: Explain = False,
    json_: Json = False,
) -> None:
    """How rare it is that two blocks get one name by accident."""
    from labcli.fault import UsageFault
    from labcli.typed_number import read_number, read_whole
    from labs.estimates.collision import estimate_collision
    from labs.estimates.figure import counted

    num_blocks = float(read_whole("--blocks", blocks, 1, 1e100))
    if bits is not None and algorithm is not None:
        raise UsageFault("--bits means nothing with --algorithm", "one of them")
    if bits is not None:
        num_bits = _count("--bits", bits, high=512)
        digests = {counted(num_bits, "bit"): num_bits}
    elif algorithm is not None:
        digests = {algorithm: _check_bits(algorithm)}
    else:
        digests = {"sha256": _check_bits("sha256"), "xxhash": _check_bits("xxhash")}
    per_s = None if per_second is None else read_number("--per-second", per_second, LEAST, 1e18, ", of blocks per second")
    _show(estimate_collision(num_blocks, digests, per_s), explain, json_)


@predict.command("models")
def predict_models(
    json_: Annotated[bool, typer.Option("--json", help="Print both tables as a JSON object, and nothing else.")] = False,
) -> None:
    """The models and GPUs that are known by name.

    With where their figures are from.
    """
    from labcli.render.known_list import known_json, print_known
    from labcli.utf8_output import write_utf8

    if json_:
        write_utf8(known_json())
    else:
        print_known()


def _show(estimate: Any, explain: bool, as_json: bool) -> None:
    from labcli.fault import UsageFault
    from labcli.render.estimate import estimate_json, print_estimate
    from labcli.utf8_output import write_utf8

    if explain and as_json:
        raise UsageFault("--explain means nothing with --json", "one of them; the JSON holds every law")
    if as_json:
        write_utf8(estimate_json(estimate))
    else:
        print_estimate(estimate, explain)


def _granularity(block_size: str | None, page_size: str | None, unit: str | None) -> Any:
    from labcli.fault import UsageFault
    from labs.estimates.estimate import Granularity

    given = {"--block-size": ("block", block_size), "--page-size": ("page", page_size), "--unit": ("unit", unit)}
    chosen = [(option, noun, size) for option, (noun, size) in given.items() if size is not None]
    if len(chosen) > 1:
        raise UsageFault(f"{chosen[1][0]} means nothing with {chosen[0][0]}", "one of them")
    option, noun, size = chosen[0] if chosen else ("--block-size", "block", "16")
    return Granularity(_count(option, size), noun)


def _shape(model: str | None, config: str | None) -> Any:
    from engine.cost_model import MODELS, model_shape
    from engine.errors import ConfigError
    from engine.model_shape import read_model_shape
    from labcli.fault import UsageFault

    if model is not None and config is not None:
        raise UsageFault("--model means nothing with --config", "one of them")
    try:
        if config is not None:
            return read_model_shape(config)
        if model is None:
            raise UsageFault("--model is missing", f"{', '.join(one.name for one in MODELS)}; or --config PATH")
        return model_shape(model)
    except ConfigError as error:
        if error.field == "model":
            raise UsageFault(f"--model is {error.value!r}", f"{error.accepted}; or --config PATH") from None
        if error.field == "config":
            raise UsageFault(f"--config is {error.value!r}", error.accepted) from None
        value = _BRIEF.repr(error.value)  # a file may hold anything
        raise UsageFault(f"--config {config}: {error.field} is {value}", error.accepted) from None


def _gpu(name: str) -> Any:
    from engine.cost_model import gpu_by_name
    from engine.errors import ConfigError
    from labcli.fault import UsageFault

    try:
        return gpu_by_name(name)
    except ConfigError as error:
        raise UsageFault(f"--gpu is {name!r}", error.accepted) from None


def _gpu_settings(name: str, share: str, weight_dtype: str, shape: Any) -> dict[str, Any]:
    """What is left for K/V beside the weights, of a GPU that holds them."""
    from labcli.fault import UsageFault
    from labcli.typed_number import read_number
    from labs import theory

    gpu, weight_bytes = _gpu(name), _dtype_bytes("--weight-dtype", weight_dtype)
    utilization = read_number("--utilization", share, LEAST, 1)
    if theory.pool_bytes(gpu, utilization, shape, weight_bytes) <= 0:
        needed = shape.num_parameters * weight_bytes / 1e9
        raise UsageFault(
            f"--gpu is {name!r}, whose {gpu.memory_bytes * utilization / 1e9:,.1f} GB do not hold {shape.name}",
            f"a GPU with room for its weights, {needed:,.1f} GB",
        )
    return {"gpu": gpu, "utilization": utilization, "weight_dtype_bytes": weight_bytes}


def _check_holds_a_block(settings: dict[str, Any], shape: Any, kv_dtype_bytes: int, block_size: int) -> None:
    from labcli.fault import UsageFault
    from labs import theory

    block_bytes = theory.kv_bytes_per_token(shape, kv_dtype_bytes) * block_size
    if "gpu" in settings:
        option = "--gpu leaves"
        left = theory.pool_bytes(settings["gpu"], settings["utilization"], shape, settings["weight_dtype_bytes"])
    else:
        option, left = "--memory is", settings["memory_bytes"]
    if left < block_bytes:
        raise UsageFault(f"{option} {left:,.0f} bytes", f"{block_bytes:,} bytes, one block of {block_size:,} tokens, or more")


def _refuse_with_memory(memory: str | None, given: dict[str, Any]) -> None:
    """An option that would be ignored must not look like a condition of the answer."""
    from labcli.fault import UsageFault

    for option, value in given.items():
        if memory is not None and value is not None:
            raise UsageFault(f"{option} means nothing with --memory", "--gpu NAME")


def _dtype_bytes(option: str, name: str) -> int:
    from labcli.fault import UsageFault

    if name.casefold() not in _DTYPE_BYTES:
        raise UsageFault(f"{option} is {name!r}", ", ".join(_DTYPE_BYTES))
    return _DTYPE_BYTES[name.casefold()]


def _check_bits(algorithm: str) -> int:
    from labcli.fault import UsageFault
    from labs.estimates.collision import HASH_BITS

    if algorithm not in HASH_BITS:
        raise UsageFault(f"--algorithm is {algorithm!r}", ", ".join(HASH_BITS))
    return HASH_BITS[algorithm]


def _count(option: str, text: str, low: int = 1, high: int = MOST_TOKENS, why: str = "") -> int:
    from labcli.typed_number import read_whole

    return read_whole(option, text, low, high, why)


def _memory_bytes(text: str) -> float:
    """52.32GiB (powers of 1,024), 40GB (powers of 1,000), 56178172231 (bytes)."""
    from labcli.fault import UsageFault
    from labcli.typed_number import read_decimal

    found = _SIZE.fullmatch(text.strip())
    number = read_decimal(found[1]) if found else None
    if found is None or number is None:
        raise UsageFault(f"--memory is {text!r}", "a size such as 52.32GiB, 40GB or 56178172231 (bytes)")
    prefix = found[2].casefold()
    size = float(number) * (1024 if prefix.endswith("i") else 1000) ** _POWERS[prefix.removesuffix("i")]
    if not 0 < size <= 1e18:
        raise UsageFault(f"--memory is {text!r}", "a size above 0, up to 1e18 bytes")
    return size
