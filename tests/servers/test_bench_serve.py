"""vLLM's own `vllm bench serve`, unchanged, against `labcli serve`: it ends well, and our counters show the reuse it made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from labs.theory import reuse
from tests.servers.real_server import MODEL_NAME, free_port, model_folder, needs_vllm, running_server

pytestmark = needs_vllm

BLOCK_SIZE = 16
NUM_PREFIXES = 4
PROMPTS_PER_PREFIX = 5
# Half a block more than eight: that text is cut into tokens another way where prefix and suffix meet changes no full block.
PREFIX_LEN = 8 * BLOCK_SIZE + BLOCK_SIZE // 2
SUFFIX_LEN = 40
OUTPUT_LEN = 3
NUM_PROMPTS = NUM_PREFIXES * PROMPTS_PER_PREFIX


@contextmanager
def labcli_server(*arguments: str):
    """`labcli serve` with these arguments; yields its base URL."""
    port = free_port()
    command = [sys.executable, "-m", "labcli", "serve", "--served-model-name", MODEL_NAME, "--port", str(port), *arguments]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "2"}
    with running_server(command, environment, f"http://127.0.0.1:{port}") as url:
        yield url


def run_bench(url: str, folder: Path, *, concurrency: int) -> dict:
    """What `vllm bench serve` saves of a run over its data set of repeated prefixes."""
    # vLLM's command wants a package named vllm, but the wheel for CPUs is named otherwise; "cpu" in the version tells
    # vLLM which of its kernels this machine can run.
    package = folder / "vllm-0.32.0+cpu.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    command = [os.environ["LABCLI_VLLM_PYTHON"], "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--base-url", url]
    command += ["--model", MODEL_NAME, "--tokenizer", str(model_folder()), "--max-concurrency", str(concurrency)]
    command += ["--dataset-name", "prefix_repetition", "--num-prompts", str(NUM_PROMPTS), "--temperature", "0"]
    for name, value in (
        ("num-prefixes", NUM_PREFIXES),
        ("prefix-len", PREFIX_LEN),
        ("suffix-len", SUFFIX_LEN),
        ("output-len", OUTPUT_LEN),
    ):
        command += [f"--prefix-repetition-{name}", str(value)]
    command += ["--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "bench.json"]
    environment = {**os.environ, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-1_000:] + done.stderr[-1_000:]
    return json.loads((folder / "bench.json").read_text())


def totals(url: str) -> dict[str, float]:
    """The value of each counter of /metrics, its labels summed."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(url + "/metrics", timeout=10).text):
        for sample in family.samples:
            if sample.name.endswith("_total"):
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def assert_all_served(bench: dict) -> None:
    assert (bench["completed"], bench["failed"]) == (NUM_PROMPTS, 0)
    assert not any(bench["errors"])
    assert set(bench["output_lens"]) == {OUTPUT_LEN}
    assert all(ttft_s > 0 for ttft_s in bench["ttfts"])


def test_our_engine_finds_what_every_prompt_but_the_first_shares(tmp_path):
    with labcli_server("--block-size", str(BLOCK_SIZE), "--dtype", "float32") as url:
        bench = run_bench(url, tmp_path, concurrency=1)
        counters = totals(url)
    assert_all_served(bench)
    assert counters["vllm:prefix_cache_queries_total"] == counters["vllm:prompt_tokens_total"] == bench["total_input_tokens"]
    found = NUM_PREFIXES * (PROMPTS_PER_PREFIX - 1) * reuse(PREFIX_LEN, PREFIX_LEN + SUFFIX_LEN, BLOCK_SIZE)
    assert counters["vllm:prefix_cache_hits_total"] == found
    assert counters["vllm:generation_tokens_total"] == NUM_PROMPTS * OUTPUT_LEN


@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_simulated_server_serves_the_same_prompts(tmp_path, concurrency):
    # Its tokens are bytes of text, of which a prefix has as many as its words have letters: only a bound is known.
    with labcli_server("--target", "sim", "--pace", "0", "--block-size", str(BLOCK_SIZE)) as url:
        bench = run_bench(url, tmp_path, concurrency=concurrency)
        counters = totals(url)
    assert_all_served(bench)
    assert counters["vllm:prefix_cache_queries_total"] == bench["total_input_tokens"]
    hits = counters["vllm:prefix_cache_hits_total"]
    least = NUM_PREFIXES * (PROMPTS_PER_PREFIX - 1) * PREFIX_LEN  # a token of text has a letter or more
    assert hits % BLOCK_SIZE == 0
    assert least <= hits <= bench["total_input_tokens"] * (PROMPTS_PER_PREFIX - 1) / PROMPTS_PER_PREFIX


def test_the_sglang_flavor_serves_the_same_prompts(tmp_path):
    with labcli_server("--flavor", "sglang", "--page-size", str(BLOCK_SIZE), "--dtype", "float32") as url:
        bench = run_bench(url, tmp_path, concurrency=1)
        counters = totals(url)
    assert_all_served(bench)
    assert counters["sglang:prompt_tokens_total"] == bench["total_input_tokens"]
    found = NUM_PREFIXES * (PROMPTS_PER_PREFIX - 1) * reuse(PREFIX_LEN, PREFIX_LEN + SUFFIX_LEN, BLOCK_SIZE)
    assert counters["sglang:cached_tokens_total"] == found
