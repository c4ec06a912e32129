"""`labcli serve`: this engine as a server that vLLM's or SGLang's clients talk to.

labcli serve
labcli serve --target sim --flavor sglang --page-size 16 --port 0
labcli serve --num-gpu-blocks 64 --no-cache-report
LABCLI_API_KEY=... labcli serve --host 0.0.0.0
"""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from labcli.shared_options import CacheDir


def serve(
    target: Annotated[
        str, typer.Option(help="engine (a real model here) or sim (no tensors, time by the cost model).")
    ] = "engine",
    flavor: Annotated[str, typer.Option(help="Whose server it is like: vllm or sglang.")] = "vllm",
    model: Annotated[
        Optional[str],
        typer.Option(
            "--model",
            "--model-path",
            help="smollm2, synthetic:<shape>, a folder or a hub id; with sim a shape's name."
            " [default: smollm2; with sim llama-3-8b]",
        ),
    ] = None,
    served_model_name: Annotated[
        Optional[str], typer.Option(metavar="NAME", help="What clients call it. [default: --model]")
    ] = None,
    dtype: Annotated[Optional[str], typer.Option(help="auto, bfloat16, float16 or float32. [default: auto]")] = None,
    device: Annotated[Optional[str], typer.Option(help="auto, cpu or cuda. [default: auto]")] = None,
    gpu: Annotated[Optional[str], typer.Option(metavar="NAME", help="The GPU whose time sim takes. [default: H100 SXM]")] = None,
    pace: Annotated[Optional[float], typer.Option(help="Real seconds per simulated second; 0: no waiting. [default: 1]")] = None,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8000,
    prefix_cache: Annotated[Optional[str], typer.Option(help="hash or radix. [default: hash for vllm, radix for sglang]")] = None,
    prefix_caching: Annotated[
        bool,
        typer.Option(
            "--prefix-caching/--no-prefix-caching",
            "--enable-prefix-caching/--no-enable-prefix-caching",
            " /--disable-radix-cache",
            help="Reuse the K/V of equal prefixes.",
            show_default="on",
        ),
    ] = True,
    block_size: Annotated[Optional[int], typer.Option(help="Tokens in a block, hash cache. [default: 16]")] = None,
    page_size: Annotated[Optional[int], typer.Option(help="Tokens in a page, radix cache. [default: 1]")] = None,
    num_gpu_blocks: Annotated[
        Optional[int],
        typer.Option(
            "--num-gpu-blocks",
            "--num-gpu-blocks-override",
            help="Blocks or pages in the pool; one of them, the null block, is never used. [default: 32,768 tokens in all]",
        ),
    ] = None,
    hash_algorithm: Annotated[
        Optional[str],
        typer.Option(
            "--prefix-caching-hash-algo", metavar="NAME", help="sha256, sha256_cbor, xxhash or xxhash_cbor. [default: sha256]"
        ),
    ] = None,
    eviction_policy: Annotated[
        Optional[str],
        typer.Option(
            "--radix-eviction-policy",
            metavar="NAME",
            help="Which pages the radix cache gives up first: lru, lfu, fifo, mru, filo, slru or priority. [default: lru]",
        ),
    ] = None,
    max_model_len: Annotated[
        Optional[int],
        typer.Option(
            "--max-model-len",
            "--context-length",
            help="Most tokens of one request, prompt and answer. [default: what the model takes]",
        ),
    ] = None,
    max_num_seqs: Annotated[
        Optional[int],
        typer.Option("--max-num-seqs", "--max-running-requests", help="Most requests that run at once. [default: 128]"),
    ] = None,
    max_num_batched_tokens: Annotated[
        Optional[int],
        typer.Option("--max-num-batched-tokens", "--chunked-prefill-size", help="Most tokens of one step. [default: 4096]"),
    ] = None,
    policy: Annotated[
        Optional[str],
        typer.Option(
            "--policy",
            "--scheduling-policy",
            "--schedule-policy",
            help="Who runs first: fcfs, priority, lpm or dfs-weight. [default: fcfs]",
        ),
    ] = None,
    speculative: Annotated[
        bool, typer.Option("--speculative", help="As with a drafter: each hit is one match unit shorter.")
    ] = False,
    cache_report: Annotated[
        bool,
        typer.Option(
            "--cache-report/--no-cache-report",
            "--enable-prompt-tokens-details/--no-enable-prompt-tokens-details",
            "--enable-cache-report",
            help="Tell each answer's cached tokens in its usage.",
            show_default="on",
        ),
    ] = True,
    reset: Annotated[
        bool, typer.Option(help="vllm: have /reset_prefix_cache, as in its dev mode; sglang has /flush_cache.", show_default="on")
    ] = True,
    metrics: Annotated[
        bool, typer.Option("--metrics/--no-metrics", "--enable-metrics", help="Have /metrics.", show_default="on")
    ] = True,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", "--max-queued-requests", help="Most requests that wait; more get 503.")
    ] = 512,
    request_timeout: Annotated[float, typer.Option(metavar="SECONDS", help="A request that takes longer gets 504.")] = 600.0,
    drain: Annotated[
        float, typer.Option(metavar="SECONDS", help="What requests may still take after Ctrl-C; 0: nothing.")
    ] = 10.0,
    cache_dir: CacheDir = None,
) -> int:
    """Serve this engine over HTTP, as vLLM or SGLang would.

    Clients need a key if LABCLI_API_KEY holds one. After Ctrl-C running requests may finish, and those that do not end with what
    they have; after a second one they get 503. Most options have the names of the real servers' flags beside their own.
    """
    from labcli.serve_run import ServeRun, check_meaning, engine_fields, options_named, server_options

    check_meaning(target, engine_only={"--dtype": dtype, "--device": device}, sim_only={"--gpu": gpu, "--pace": pace})
    with options_named():
        config = engine_fields(
            target,
            flavor,
            prefix_cache,
            model=model,
            dtype=dtype,
            device=device,
            block_size=block_size,
            page_size=page_size,
            num_gpu_blocks=num_gpu_blocks,
            prefix_caching_hash_algo=hash_algorithm,
            radix_eviction_policy=eviction_policy,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            policy=policy,
            enable_prefix_caching=prefix_caching,
            use_eagle=speculative,
        )
        options = server_options(
            flavor=flavor,
            model_name=served_model_name or config.model,
            host=host,
            port=port,
            cache_report=cache_report,
            reset_endpoint=reset,
            metrics_endpoint=metrics,
            max_waiting=max_waiting,
            request_timeout_s=request_timeout,
            drain_s=drain,
        )
        run = ServeRun(target, config, options, gpu=gpu, pace=1.0 if pace is None else pace, cache_dir=cache_dir)
        return run.execute()
