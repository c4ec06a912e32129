"""Many clients for a while: is a reply lost or another client's, does memory grow, do the counters equal the replies' sums?

    python -m tests.servers.soak [--clients 64] [--seconds 60] [--flavor vllm]

Starts `labcli serve --target sim --pace 0` in a process of its own. What each prompt must be answered is computed before,
by an engine in this process; a reply with another prompt's ids, or other output, is somebody else's. Exit code 1 if anything
is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field

import httpx
import psutil

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import SimulatedRunner
from engine.request import SamplingParams
from labs.servers.metrics_page import MetricsPage
from labs.servers.prefix_counters import SERIES, CounterReading

MODEL = "smollm2-135m"
NUM_PROMPTS, OUTPUT_TOKENS = 1_024, 6


@dataclass
class SoakResult:
    """Sums of all replies, and what was wrong with any."""

    num_replies: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)  # of the server, at equal intervals
    counted: CounterReading | None = None


def expected_answers(seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Prompts that share fronts of several lengths, each with the greedy output it must get."""
    rng = random.Random(seed)
    fronts = [[rng.randrange(300, 40_000) for _ in range(16 * length)] for length in (0, 1, 3, 8, 20)]
    prompts = [[*rng.choice(fronts), *(rng.randrange(300, 40_000) for _ in range(rng.randrange(1, 64)))] for _ in range(NUM_PROMPTS)]
    engine = LLMEngine(EngineConfig(model=MODEL), SimulatedRunner(model=MODEL))
    outputs = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True))
    return [(prompt, list(output.output_token_ids)) for prompt, output in zip(prompts, outputs)]


async def soak(url: str, num_clients: int, seconds: float, server: psutil.Process | None = None) -> SoakResult:
    """Let clients send one request after the other until the time is over; every third reply is streamed."""
    answers, result, end_s = expected_answers(), SoakResult(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=num_clients, max_keepalive_connections=num_clients)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False) as http:

        async def client(number: int) -> None:
            rng = random.Random(number)
            while time.monotonic() < end_s:
                await _one(http, *rng.choice(answers), rng.random() < 1 / 3, result)

        async def watch() -> None:
            while server is not None and time.monotonic() < end_s:
                await asyncio.sleep(seconds / 12)
                result.rss_mib.append(server.memory_info().rss / 2**20)

        await asyncio.gather(watch(), *(client(number) for number in range(num_clients)))
        result.counted = CounterReading.of(MetricsPage.parse((await http.get("/metrics")).text, SERIES))
    return result


async def _one(http: httpx.AsyncClient, prompt: list[int], output: list[int], stream: bool, result: SoakResult) -> None:
    body = {"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    reply = await http.post("/v1/completions", json=body)
    if reply.status_code != 200:
        result.wrong.append(f"status {reply.status_code}")
        return
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")] if stream else [reply.json()]
    if stream and not reply.text.rstrip().endswith("data: [DONE]"):
        result.wrong.append("a stream without its end")
    choices = [event["choices"][0] for event in events if event["choices"]]
    usage = events[-1]["usage"]
    if choices[0]["prompt_token_ids"] != prompt or [one for choice in choices for one in choice["token_ids"] or ()] != output:
        result.wrong.append("another request's reply")
    result.num_replies += 1
    result.prompt_tokens += usage["prompt_tokens"]
    result.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
    result.output_tokens += usage["completion_tokens"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--flavor", choices=("vllm", "sglang"), default="vllm")
    asked = parser.parse_args()
    command = [sys.executable, "-m", "labcli", "serve", "--target", "sim", "--model", MODEL, "--pace", "0", "--port", "0", "--flavor", asked.flavor]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        url = line.split()[-1]
        result = asyncio.run(soak(url, asked.clients, asked.seconds, psutil.Process(process.pid)))
    finally:
        process.terminate()
        process.wait(30)
    sums = CounterReading(result.prompt_tokens, result.cached_tokens)
    are_equal = (result.counted.queries, result.counted.hits) == (sums.queries, sums.hits)
    rss = result.rss_mib
    print(line.strip())
    print(f"{asked.clients} clients, {asked.seconds:.0f} s: {result.num_replies:,} replies, {result.num_replies / asked.seconds:,.0f} a second")
    print(f"lost or another's: {len(result.wrong)} {result.wrong[:3] or ''}")
    print(f"resident memory of the server, MiB: {' '.join(f'{one:.1f}' for one in rss)}")
    print(f"/metrics: {result.counted.queries:,} looked up, {result.counted.hits:,} found; replies' usage: {sums.queries:,}, {sums.hits:,}: "
          f"{'equal' if are_equal else 'NOT EQUAL'}")
    return 0 if are_equal and not result.wrong and result.num_replies else 1


if __name__ == "__main__":
    sys.exit(main())
