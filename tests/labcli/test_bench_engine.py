"""`labcli bench engine`: four workloads, ratios, memory, the record, and what was typed."""

import json

import pytest

import labcli.engine_bench_run
from labs.benches.engine_bench import EngineBench
from tests.labs.fake_timed_engine import FakeTimedEngine

SMALL = (
    "bench", "engine", "--model", "synthetic:tiny", "--prompt-tokens", "100", "--cached-tokens", "64", "--trials", "2",
    "--dtype", "float32", "--num-threads", "1",
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_workloads(monkeypatch):
    import labs.benches.engine_bench

    original = labs.benches.engine_bench.Config

    def small(**fields):
        # 64 tokens are whole blocks: an engine that forgets to compute the last token again finds one block too many.
        return original(repeat_tokens=64, repeat_count=3, repeat_outputs=2, decode_tokens=10, decode_requests=2, decode_outputs=3, **fields)

    monkeypatch.setattr(labs.benches.engine_bench, "Config", small)


def test_alone_it_tells_times_hits_and_memory(labcli_command, tmp_path):
    result = labcli_command(*SMALL, "--memory-requests", "200")
    assert (result.exit_code, result.stderr) == (0, "")
    for text in ("cold", "warm", "repeat", "decode", "ready after", "MB at the highest", "after 150 more requests"):
        assert text in result.stdout
    (path,) = tmp_path.glob("results/bench-engine/*.json")
    record = json.loads(path.read_text())
    assert record["status"] == "ok"
    hits = {one["group"]: (one["samples"], one["predicted"]["value"]) for one in record["measurements"] if one["name"] == "hits"}
    assert hits == {"cold": ([0, 0], 0), "warm": ([64, 64], 64), "repeat": ([64, 64], 64), "decode": ([0, 0], 0)}


def test_beside_a_peer_it_tells_ratios_and_equal_tokens(labcli_command, monkeypatch):
    told = {}

    def open_peer(name, settings, python, on_load):
        told.update(name=name, settings=settings, python=python)
        return FakeTimedEngine("vLLM", 50.0, block_size=32)

    monkeypatch.setattr(labcli.engine_bench_run, "open_peer", open_peer)
    monkeypatch.setattr(labcli.engine_bench_run, "model_folder", lambda *_: "folder")
    result = labcli_command(*SMALL, "--against", "vllm", "--vllm-python", "there", "--compile")
    assert result.exit_code == 0
    assert result.stdout.count("times as fast as vLLM [") == 4 and "equal to vLLM's" in result.stdout
    assert (told["name"], told["python"]) == ("vllm", "there")
    settings = told["settings"]
    assert (settings.dtype, settings.block_size, settings.compile, settings.num_threads) == ("float32", 32, True, 1)
    labcli_command(*SMALL, "--against", "vllm", "--no-save")
    assert told["settings"].compile is False


def test_hits_that_break_the_law_end_with_exit_1(labcli_command, monkeypatch):
    monkeypatch.setattr(labcli.engine_bench_run, "open_peer", lambda *_: FakeTimedEngine("vLLM", block_size=5))
    monkeypatch.setattr(labcli.engine_bench_run, "model_folder", lambda *_: "folder")
    result = labcli_command(*SMALL, "--against", "vllm", "--no-save")
    assert result.exit_code == 1
    assert "labcli: vLLM, warm: 60 hits, the law says 64" in result.stderr


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--cached-tokens", "70"], "labcli: cached_tokens is 70; accepted: a multiple of the block size, 32"),
        (["--cached-tokens", "100"], "labcli: cached_tokens is 100; accepted: a whole number below prompt_tokens, 100"),
        (["--trials", "0"], "labcli: trials is 0; accepted: "),
        (["--num-threads", "0"], "labcli: --num-threads is 0; accepted: "),
        (["--memory-requests", "-1"], "labcli: --memory-requests is -1; accepted: "),
        (["--against", "transformers"], "labcli: --against is 'transformers'; accepted: vllm; "),
        (["--dtype", "float16", "--compile"], "labcli: compile is True; accepted: false, or true with dtype float32 or bfloat16"),
    ],
)
def test_bad_usage_is_one_line(labcli_command, tmp_path, arguments, line):
    result = labcli_command(*SMALL, *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert result.stderr.startswith(line), result.stderr
    assert not list(tmp_path.glob("results/*/*"))


def test_an_error_half_way_keeps_the_trials_before_it(labcli_command, monkeypatch, tmp_path):
    run_trial = EngineBench.run_trial

    def second_fails(self, on_run=None):
        if self._num_trials:
            raise RuntimeError("broken")
        run_trial(self, on_run)

    monkeypatch.setattr(EngineBench, "run_trial", second_fails)
    result = labcli_command(*SMALL)
    assert result.exit_code == 1 and "what was measured before that is saved in results" in result.stderr
    (path,) = tmp_path.glob("results/bench-engine/*.json")
    assert json.loads(path.read_text())["status"] == "failed"
