"""`labcli hash-bench`: what naming a block costs, per algorithm.

    labcli hash-bench
    labcli hash-bench --num-blocks 20000 --block-size 16 --algorithms sha256 --algorithms xxhash
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Optional

import typer


def hash_bench(
    num_blocks: Annotated[int, typer.Option(help="Blocks in the chain.")] = 10_000,
    block_size: Annotated[int, typer.Option(help="Tokens in a block.")] = 32,
    vocab_size: Annotated[int, typer.Option(help="Token ids are drawn from 0 up to this.")] = 32_000,
    seed: Annotated[int, typer.Option(help="Decides the token ids.")] = 0,
    trials: Annotated[int, typer.Option(help="Measured rounds per algorithm.")] = 5,
    algorithms: Annotated[
        Optional[list[str]],
        typer.Option(metavar="NAME", help="sha256, sha256_cbor, xxhash, xxhash_cbor; repeatable, or with commas. [default: all]"),
    ] = None,
    results_dir: Annotated[
        str, typer.Option(envvar="LABCLI_RESULTS_DIR", metavar="FOLDER", help="Where records are kept.")
    ] = "results",
    json_: Annotated[bool, typer.Option("--json", help="Print the record, and nothing else, on stdout.")] = False,
    no_save: Annotated[bool, typer.Option("--no-save", help="Keep no record.")] = False,
) -> int:
    """Time the hashes that name blocks."""
    from engine.errors import MissingPackage
    from labcli.progress_bar import ProgressBar
    from labcli.render.record_json import write_json
    from labcli.results_store import ResultsStore
    from labcli.run_identity import utc_now
    from labs.hash_cost import Config, make_blocks, measure_hash_cost

    settings: dict[str, Any] = dict(
        num_blocks=num_blocks, block_size=block_size, vocab_size=vocab_size, seed=seed, trials=trials
    )
    if algorithms:
        names = [name.strip() for one in algorithms for name in one.split(",")]
        settings["algorithms"] = tuple(dict.fromkeys(names))
    config = Config(**settings)
    store = None if no_save else ResultsStore(results_dir)
    if store is not None:
        store.check_writable("hash-bench")

    started_at = utc_now()
    blocks = make_blocks(config)
    costs = []
    with ProgressBar() as bar:
        bar.expect(len(config.algorithms) * (config.trials + 1))
        for algorithm in config.algorithms:
            try:
                costs.append(
                    measure_hash_cost(algorithm, blocks, config, on_trial=lambda: bar.advance(algorithm, 1))
                )
            except MissingPackage as missing:
                print(f"labcli: skipping {algorithm}: {missing}", file=sys.stderr)
    if not costs:
        raise MissingPackage("no algorithm could be timed; accepted: pip install xxhash cbor2, or --algorithms sha256")
    record = _record(costs, config, started_at)
    path = None if store is None else store.save(record)
    if json_:
        write_json(record)
    else:
        from labcli.render.hash_table import print_hash_table

        print_hash_table(costs, config, path)
    return 0


def _record(costs: list[Any], config: Any, started_at: str) -> Any:
    import labs.hash_cost
    from engine.kvcache import block_hash
    from labcli.environment import read_environment
    from labcli.record import ResultRecord, json_ready
    from labcli.run_identity import new_run_id, source_hashes, utc_now
    from labs.protocol import Measurement

    return ResultRecord(
        run_id=new_run_id(),
        started_at=started_at,
        finished_at=utc_now(),
        environment=read_environment(),
        lab={"number": None, "name": "hash-bench", "question": "What does naming a block cost, per algorithm?"},
        sources=source_hashes(
            {"labs/hash_cost.py": labs.hash_cost.__file__, "engine/kvcache/block_hash.py": block_hash.__file__}
        ),
        lab_config=json_ready(config),
        target={"kind": "none"},
        status="ok",
        measurements=tuple(
            Measurement("chain", "s", cost.samples_s, row=cost.algorithm, params={"algorithm": cost.algorithm})
            for cost in costs
        ),
    )
