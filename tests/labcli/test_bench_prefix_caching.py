"""`labcli bench prefix-caching`: what it prints, its record, its law, and what was typed."""

import json
import re

import pytest

import labcli.prefix_bench_run
from engine.kvcache.kv_cache_manager import KVCacheManager
from tests.labs.fake_timed_engine import FakeTimedEngine

SMALL = (
    "bench", "prefix-caching", "--model", "synthetic:tiny", "--num-prompts", "2", "--repeat-count", "3",
    "--input-length-range", "48:48", "--output-len", "3", "--trials", "2", "--block-size", "16", "--dtype", "float32",
)  # fmt: skip


def record_of(tmp_path):
    (path,) = tmp_path.glob("results/bench-prefix-caching/*.json")
    return json.loads(path.read_text())


def test_it_prints_the_scripts_lines_and_what_the_script_lacks(labcli_command, tmp_path):
    result = labcli_command(*SMALL)
    assert (result.exit_code, result.stderr) == (0, "")
    for line in (
        r"Start to sample 2 prompts", r"Sampled 2 requests\.", r"Average input length: [\d.]+", r"P50 input length: \d+",
        r"Min Prompt Length: \d+", r"Max Prompt Length: \d+", r"Testing filtered requests", r"-+start generating-+", r"cost time [\d.]+",
        r"first", r"again", r"requests/s", r"prompt tokens/s", r"outputs/s", r"cold TTFT", r"warm TTFT",
        r"token gap", r"p50\s+p90\s+p99", r"the law says [\d,]+ hits", r"cache before the first pass: cold", r"record: ",
    ):  # fmt: skip
        assert re.search(line, " ".join(result.stdout.split())), line
    record = record_of(tmp_path)
    assert (record["status"], record["cache_state"]) == ("ok", "cold")
    hits = {one["group"]: one for one in record["measurements"] if one["name"] == "hits"}
    assert hits["first pass"]["samples"] == [hits["first pass"]["predicted"]["value"]] * 2
    assert hits["first pass"]["samples"][0] == 2 * 2 * 32 and hits["again"]["samples"][0] == 2 * 3 * 32


def test_hits_that_break_the_law_end_with_exit_1(labcli_command, monkeypatch):
    monkeypatch.setattr(KVCacheManager, "reads_cache", lambda self, request: False)
    result = labcli_command(*SMALL, "--no-save")
    assert result.exit_code == 1
    assert "labcli: labcli, first pass: 0 hits, the law says 128" in result.stderr


def test_radix_and_no_cache_have_laws_of_their_own(labcli_command, tmp_path):
    result = labcli_command(*SMALL, "--set", "prefix_cache=radix", "--set", "page_size=4", "--no-save")
    assert result.exit_code == 0
    assert "again: the law says" in result.stdout and "requests of one step do not find each other" in " ".join(result.stdout.split())
    result = labcli_command(*SMALL, "--no-enable-prefix-caching")
    assert result.exit_code == 0 and "again" not in result.stdout
    (hits,) = [one for one in record_of(tmp_path)["measurements"] if one["name"] == "hits"]
    assert hits["samples"] == [0, 0] and hits["predicted"]["value"] == 0


def test_a_pool_that_evicts_is_said_and_not_predicted(labcli_command):
    result = labcli_command(*SMALL, "--set", "num_gpu_blocks=12", "--no-save")
    assert result.exit_code == 0
    assert "the pool may evict" in result.stdout and "the law says" not in result.stdout


def test_sorted_requests_and_json(labcli_command, tmp_path):
    result = labcli_command(*SMALL, "--sort", "--json", "--disable-detokenize")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert record["lab_config"]["sort"] is True and record["lab_config"]["detokenize"] is False
    assert "token_ids" not in result.stdout


@pytest.mark.parametrize("shift, said", [(0, "equal to vLLM's in all 6 requests"), (1, "6 of 6 requests differ from vLLM's")])
def test_a_peer_is_timed_in_turns_and_its_tokens_compared(labcli_command, monkeypatch, shift, said):
    own = labcli.prefix_bench_run.OwnEngine

    class Peer(FakeTimedEngine):
        """Gives our engine's tokens, so that they can be equal."""

        def serve(self, prompts, num_outputs):
            served = super().serve(prompts, num_outputs)
            again = [reference.serve([prompt], num_outputs).output_ids[0] for prompt in prompts]
            return type(served)(100.0, tuple(tuple(one + shift for one in ids) for ids in again), served.token_times_s, served.num_cached_tokens)

    def open_own(*arguments, **fields):
        nonlocal reference
        reference = own(*arguments, **fields)
        return own(*arguments, **fields)

    reference = None
    monkeypatch.setattr(labcli.prefix_bench_run, "OwnEngine", open_own)
    monkeypatch.setattr(labcli.prefix_bench_run, "model_folder", lambda *_: "folder")
    monkeypatch.setattr(labcli.prefix_bench_run, "open_peer", lambda name, settings, *_: Peer("vLLM", block_size=16))
    result = labcli_command(*SMALL, "--against", "vllm", "--no-save")
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert said in text and re.search(r"first pass: [\d,.]+ times as fast as vLLM 0.fake \[", text)


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--input-length-range", "9"], "labcli: input_length_range is '9'; accepted: \"min:max\""),
        (["--dataset-path", "absent.json", "--output-len", "4"], "labcli: 'absent.json' cannot be read (No such file or directory); accepted: a ShareGPT"),
        (["--num-prompts", "0"], "labcli: num_prompts is 0; accepted: "),
        (["--trials", "0"], "labcli: --trials is 0; accepted: a whole number from 1"),
        (["--against", "sglang"], "labcli: --against is 'sglang'; accepted: vllm, transformers, transformers-batch"),
        (["--vllm-python", "/x"], "labcli: --vllm-python means nothing without --against vllm; accepted: "),
        (["--set", "nope=1"], "labcli: the engine has no field 'nope'; accepted: model (text), "),
        (["--set", "page_size=0"], "labcli: page_size is 0; accepted: "),
        (["--against", "transformers"], "labcli: model is 'synthetic:tiny'; accepted: a model with files beside a peer"),
        (["--prefix-len", "48"], "labcli: prefix_len is 48; accepted: "),
    ],
)
def test_bad_usage_is_one_line(labcli_command, tmp_path, arguments, line):
    result = labcli_command(*SMALL, *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(line), result.stderr
    assert not list(tmp_path.glob("results/*/*"))


def test_an_interrupted_run_keeps_its_trials(labcli_command, monkeypatch, tmp_path):
    from labs.benches.prefix_bench import PrefixBench

    run_trial = PrefixBench.run_trial

    def second_is_interrupted(self, on_run=None):
        if self._num_trials:
            raise KeyboardInterrupt
        run_trial(self, on_run)

    monkeypatch.setattr(PrefixBench, "run_trial", second_is_interrupted)
    result = labcli_command(*SMALL)
    assert result.exit_code == 130 and "interrupted; what was measured is saved in results" in result.stderr
    record = record_of(tmp_path)
    assert record["status"] == "interrupted"
    assert len(next(one for one in record["measurements"] if one["name"] == "seconds")["samples"]) == 1
