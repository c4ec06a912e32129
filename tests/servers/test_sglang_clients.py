"""SGLang's own clients, unchanged, against `labcli serve`: its benchmark and its frontend language end well, and the reuse
that they report and our counters are one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.servers.real_server import MODEL_NAME, model_folder, needs_sglang
from tests.servers.test_bench_serve import labcli_server, totals

pytestmark = needs_sglang

STARTERS = Path(__file__).parents[1] / "sglang"
SIMULATED = ("--target", "sim", "--flavor", "sglang", "--pace", "0")

NUM_GROUPS = 2
PROMPTS_PER_GROUP = 3
NUM_PROMPTS = NUM_GROUPS * PROMPTS_PER_GROUP
SYSTEM_LEN = 64  # tokens of SGLang's tokenizer; the simulated server has a token for each byte
OUTPUT_LEN = 4
PAGE_SIZE = 16


def run_client(starter: str, *arguments: str, home: Path) -> str:
    """What a client of SGLang's prints; it keeps its prompts below `home`."""
    command = [os.environ["LABCLI_SGLANG_PYTHON"], str(STARTERS / starter), *arguments]
    environment = {**os.environ, "HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-1_000:] + done.stderr[-1_000:]
    return done.stdout


def test_its_benchmark_reports_the_cached_tokens_that_our_counters_show(tmp_path):
    options = {
        "backend": "sglang", "model": MODEL_NAME, "tokenizer": model_folder(), "max-concurrency": 1, "output-file": "bench.jsonl",
        "dataset-name": "generated-shared-prefix", "gsp-num-groups": NUM_GROUPS, "gsp-prompts-per-group": PROMPTS_PER_GROUP,
        "gsp-system-prompt-len": SYSTEM_LEN, "gsp-question-len": 16, "gsp-output-len": OUTPUT_LEN, "temperature": 0,
    }  # fmt: skip
    flags = ["--gsp-ordered", "--flush-cache", "--cache-report", "--output-details", "--disable-tqdm"]
    with labcli_server(*SIMULATED, "--page-size", str(PAGE_SIZE)) as url:
        given = [f"--{name}={value}" for name, value in options.items()]
        run_client("run.py", "sglang.bench_serving", f"--base-url={url}", *given, *flags, home=tmp_path)
        counters = totals(url)
    (bench,) = map(json.loads, (tmp_path / "bench.jsonl").read_text().splitlines())
    assert bench["completed"] == NUM_PROMPTS and not any(bench["errors"])
    assert bench["output_lens"] == [OUTPUT_LEN] * NUM_PROMPTS and all(ttft_s > 0 for ttft_s in bench["ttfts"])
    # It asks its first prompt once more, to warm up, and flushes the cache afterwards: nobody finds that one.
    assert counters["sglang:prompt_tokens_total"] == sum(bench["input_lens"]) + bench["input_lens"][0]
    assert counters["sglang:num_requests_total"] == NUM_PROMPTS + 1
    assert counters["sglang:cached_tokens_total"] == sum(bench["cached_tokens"])
    for number, cached in enumerate(bench["cached_tokens"]):
        is_first = number % PROMPTS_PER_GROUP == 0
        assert cached % PAGE_SIZE == 0
        assert cached == 0 if is_first else SYSTEM_LEN <= cached < bench["input_lens"][number]


def test_its_frontend_language_caches_a_prefix_and_finds_it(tmp_path):
    prompt = "1, 2, 3,"
    with labcli_server(*SIMULATED) as url:
        told = json.loads(run_client("endpoint.py", url, prompt, home=tmp_path).splitlines()[-1])
        counters = totals(url)
    assert told["whole"] == told["streamed"] != "" and told["num_tokens"] == OUTPUT_LEN
    assert told["version"] == "0.5.23"
    # The prompt alone computes all of it and no output; each of the two after it finds all but the last byte.
    assert counters["sglang:prompt_tokens_total"] == 3 * len(prompt)
    assert counters["sglang:cached_tokens_total"] == 2 * (len(prompt) - 1)
    assert counters["sglang:generation_tokens_total"] == 2 * OUTPUT_LEN
