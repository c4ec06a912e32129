"""`labcli bench cache`: the table, the record, and what was typed."""

import json

import pytest

import labcli.cache_bench_run
from labs.benches.cache_cost import CacheRun

SMALL = ("bench", "cache", "--num-requests", "20", "--prompt-tokens", "100", "--shared-tokens", "50", "--small-pool-blocks", "10", "--trials", "2")


@pytest.fixture(autouse=True)
def short_lookups(monkeypatch):
    monkeypatch.setattr("labs.benches.cache_cost.LOOKUP_TOKENS", (100, 200, 400))


class StubPeer:
    version, extra_hits = "0.stub", 0

    def __init__(self, python):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def load(self, prompts):
        self.prompts = prompts

    def run(self, algorithm, block_size, num_blocks):
        from labs.benches.cache_cost import Config, run_cache

        config = Config(20, 100, 50, 50, block_size, 10, algorithm)
        return CacheRun(1.0, run_cache(self.prompts, config, "hash", num_blocks).hits + self.extra_hits)


def test_it_tells_throughput_memory_and_lookups_and_keeps_a_record(labcli_command, tmp_path):
    result = labcli_command(*SMALL)
    assert (result.exit_code, result.stderr) == (0, "")
    for title in ("M tokens/s", "bytes a block", "time ~ L^", "10 blocks"):
        assert title in result.stdout
    (path,) = tmp_path.glob("results/bench-cache/*.json")
    record = json.loads(path.read_text())
    rows = [one["row"] for one in record["measurements"] if one["name"] == "seconds"]
    assert rows == ["hash, unlimited", "radix, unlimited", "hash, 10 blocks", "radix, 10 blocks"]
    assert (record["lab"]["name"], record["status"]) == ("bench-cache", "ok")


def test_a_peers_hits_are_what_ours_must_be(labcli_command, monkeypatch, tmp_path):
    monkeypatch.setattr(labcli.cache_bench_run, "VllmCache", StubPeer)
    result = labcli_command(*SMALL, "--against", "vllm")
    assert result.exit_code == 0
    assert "times as fast as vLLM 0.stub" in result.stdout and "the same hits" in result.stdout
    monkeypatch.setattr(StubPeer, "extra_hits", 16)
    result = labcli_command(*SMALL, "--against", "vllm", "--no-save")
    assert result.exit_code == 1
    assert "OTHER HITS" in result.stdout and "hits, vLLM found" in result.stderr


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["cache", "--trials", "0"], "labcli: trials is 0; accepted: "),
        (["cache", "--algorithm", "md5"], "labcli: algorithm is 'md5'; accepted: sha256, "),
        (["cache", "--against", "x"], "labcli: --against is 'x'; accepted: vllm"),
        (["cache", "--vllm-python", "/x"], "labcli: --vllm-python means nothing without --against vllm; accepted: "),
        (["cache", "--against", "vllm", "--vllm-python", "/nope"], "labcli: '/nope' cannot be run ("),
        (["nope"], "labcli: no command 'nope'; accepted: cache"),
    ],
)
def test_bad_usage_is_one_line(labcli_command, tmp_path, arguments, line):
    result = labcli_command("bench", *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(line)
    assert not (tmp_path / "results").exists()


def test_an_interrupted_run_keeps_its_passes(labcli_command, monkeypatch, tmp_path):
    original, calls = labcli.cache_bench_run.CacheBench.run_trial, []

    def run_trial(self, on_run=None):
        if calls:
            raise KeyboardInterrupt
        calls.append(original(self, on_run))

    monkeypatch.setattr(labcli.cache_bench_run.CacheBench, "run_trial", run_trial)
    result = labcli_command(*SMALL)
    assert result.exit_code == 130 and "what was measured is saved in results/bench-cache/" in result.stderr
    record = json.loads(next(tmp_path.glob("results/bench-cache/*.json")).read_text())
    assert record["status"] == "interrupted" and len(record["measurements"]) == 8


def test_a_peer_that_fails_half_way_loses_no_pass(labcli_command, monkeypatch, tmp_path):
    from labs.peers.worker_process import PeerEnded

    original, calls = StubPeer.run, []

    def run(self, *arguments):
        calls.append(arguments)
        if len(calls) > 2:
            raise PeerEnded("vLLM's process ended")
        return original(self, *arguments)

    monkeypatch.setattr(labcli.cache_bench_run, "VllmCache", StubPeer)
    monkeypatch.setattr(StubPeer, "run", run)
    result = labcli_command(*SMALL, "--against", "vllm")
    assert result.exit_code == 1
    assert result.stderr.startswith("labcli: vLLM's process ended; what was measured before that is saved in results/bench-cache/")
    record = json.loads(next(tmp_path.glob("results/bench-cache/*.json")).read_text())
    assert (record["status"], record["error"]) == ("failed", "PeerEnded")
    assert any(one["name"] == "seconds" for one in record["measurements"])
