"""`labcli hash-bench`: four algorithms, vLLM's lines, vLLM beside us, a prompt; what was typed is checked, samples kept."""

import json
import re

import pytest

import labs.benches.hash_cost
from labs.benches.prompt_cost import Prefill
from tests.labs.stub_vllm import write_stub_vllm

SMALL = ("hash-bench", "--num-blocks", "20", "--block-size", "4", "--trials", "3")
ALGORITHMS = ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]


@pytest.fixture(autouse=True)
def short_growth(monkeypatch):
    monkeypatch.setattr(labs.benches.hash_cost.growth_lengths, "__defaults__", ((100, 200, 400),))


def rows(record, name, group="chain"):
    return [one["row"] for one in record["measurements"] if (one["name"], one["group"]) == (name, group)]


def test_the_tables_have_a_line_for_each_algorithm_and_the_record_all_samples(labcli_command, tmp_path):
    result = labcli_command(*SMALL)
    assert result.exit_code == 0
    for title in ("M tokens/s", "serialising", "digest alone", "time ~ L^"):
        assert title in result.stdout
    for name in ALGORITHMS:
        assert len(re.findall(rf"(?m)^{name} ", result.stdout)) == 3  # cost, where it goes, growth
    (path,) = tmp_path.glob("results/hash-bench/*.json")
    assert f"record: results/hash-bench/{path.name}" in result.stdout
    record = json.loads(path.read_text())
    for name in ("whole", "append", "digest"):
        assert rows(record, name) == ALGORITHMS
    assert all(len(one["samples"]) == 3 for one in record["measurements"] if one["group"] == "chain")
    assert len(rows(record, "whole", "growth")) == 12
    assert record["details"]["growth"]["sha256"]["r_squared"] <= 1
    assert record["lab_config"]["num_blocks"] == 20
    assert (record["lab"]["number"], record["status"]) == (None, "ok")


@pytest.mark.parametrize(
    "chosen",
    [
        ["--algorithms", "xxhash", "--algorithms", "sha256"],
        ["--algorithms", "xxhash,sha256"],
        ["--algorithms", "xxhash", "sha256"],  # as vLLM's script takes them
    ],
)
def test_json_is_the_record_of_the_chosen_algorithms(labcli_command, chosen):
    result = labcli_command(*SMALL, "--json", "--no-save", *chosen)
    assert (result.exit_code, result.stderr) == (0, "")
    assert rows(json.loads(result.stdout), "whole") == ["xxhash", "sha256"]


def test_vllms_form_is_that_of_its_script(labcli_command):
    result = labcli_command(*SMALL, "--format", "vllm")
    first, *lines = result.stdout.splitlines()
    assert (result.exit_code, first) == (0, "Benchmarking 4 algorithms on 20 blocks (block size=4).")
    form = r"(\S+) *avg: \d+\.\d{6}s  best: \d+\.\d{6}s  throughput: \d+\.\d\dM tokens/s"
    assert [re.fullmatch(form, line)[1] for line in lines] == ALGORITHMS
    assert {line.index("avg:") for line in lines} == {15}  # the name in 14 columns
    assert "record: " in result.stderr


@pytest.mark.parametrize("block_size, grows", [("150", False), ("64", True)])
def test_growth_needs_prompts_that_fill_a_block(labcli_command, block_size, grows):
    result = labcli_command("hash-bench", "--num-blocks", "3", "--block-size", block_size, "--trials", "2", "--no-save")
    assert result.exit_code == 0
    assert ("Growth with length" in result.stdout, "growth with length is left out" in result.stdout) == (grows, not grows)


def test_cells_follow_from_the_samples(labcli_command, monkeypatch):
    """1,000 blocks of 20 tokens: 2 ms for the whole, 0.5 ms for the digest alone, 3 ms one by one."""
    for name, seconds in (("time_whole", 0.002), ("time_appends", 0.003), ("time_digest", 0.0005)):
        monkeypatch.setattr(labs.benches.hash_cost.NamedChain, name, lambda self, seconds=seconds: seconds)
    arguments = ("--num-blocks", "1000", "--block-size", "20", "--no-save", "--algorithms", "sha256")
    result = labcli_command("hash-bench", *arguments)
    rows_of_sha256 = [line.split() for line in result.stdout.splitlines() if line.startswith("sha256 ")]
    assert rows_of_sha256[0] == ["sha256", "2.00", "ms", "2.00", "ms", "0%", "2,000", "100.0", "10.0"]
    assert rows_of_sha256[1] == ["sha256", "1,500", "500", "2,000", "25%", "3,000"]
    line = labcli_command("hash-bench", *arguments, "--format", "vllm").stdout.splitlines()[1]
    assert line == "sha256         avg: 0.002000s  best: 0.002000s  throughput: 10.00M tokens/s"


def test_a_prompts_shares_follow_from_the_samples(labcli_command, monkeypatch, tmp_path):
    monkeypatch.setattr(labs.benches.hash_cost.NamedChain, "time_whole", lambda self: 0.002)
    monkeypatch.setattr("labcli.hash_run.time_tokenising", lambda *_: (0.008,))
    monkeypatch.setattr("labcli.hash_run.prefill_by_cost_model", lambda *_: Prefill((0.1,), "a clock"))
    (tmp_path / "p.txt").write_text("Some words. " * 10)
    arguments = ("--prompt", "p.txt", "--model", "synthetic:tiny", "--no-save", "--algorithms", "sha256")
    lines = labcli_command("hash-bench", *arguments).stdout.splitlines()
    assert [line.split()[-2:] for line in lines if line.startswith("hashing, sha256")] == [["25.0%", "2.00%"]]
    assert [line.split()[-1] for line in lines if line.startswith("tokenising")] == ["8.00%"]


def test_few_trials_are_said_to_be_few(labcli_command):
    assert "note: sha256: few samples (3 of at least 5)" in labcli_command(*SMALL, "--no-save").stdout
    assert "labcli: sha256: few samples" in labcli_command(*SMALL, "--no-save", "--format", "vllm").stderr


def test_an_unstable_run_is_said_to_be_unstable(labcli_command, monkeypatch):
    times = iter([0.0, 1, 1, 1, 2, 2, 3, 3] * 50)
    monkeypatch.setattr(labs.benches.hash_cost.NamedChain, "time_whole", lambda self: next(times) + 0.001)
    result = labcli_command(*SMALL[:-1], "8", "--no-save", "--algorithms", "sha256", "--format", "vllm")
    assert "labcli: sha256: unstable: half of 8 samples lie more than" in result.stderr


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--num-blocks", "0"], "labcli: num_blocks is 0; accepted: a whole number from 1 to "),
        (["--block-size", "-1"], "labcli: block_size is -1; accepted: "),
        (["--trials", "0"], "labcli: trials is 0; accepted: "),
        (["--vocab-size", "0"], "labcli: vocab_size is 0; accepted: "),
        (["--seed", "-1"], "labcli: seed is -1; accepted: a whole number from 0 to "),
        (["--algorithms", "md5"], "labcli: algorithms is 'md5'; accepted: sha256, sha256_cbor, xxhash, xxhash_cbor"),
        (["--num-blocks", "x"], "labcli: --num-blocks is 'x'; accepted: a whole number"),
        (["--blocks", "1"], "labcli: labcli hash-bench has no option --blocks; accepted: --num-blocks, "),
        (["sha256"], "labcli: unexpected 'sha256'; accepted: "),
        (["--format", "xml"], "labcli: --format is 'xml'; accepted: table, vllm"),
        (["--against", "sglang"], "labcli: --against is 'sglang'; accepted: vllm"),
        (["--vllm-python", "/x"], "labcli: --vllm-python means nothing without --against vllm; accepted: "),
        (["--against", "vllm", "--vllm-python", "/nope"], "labcli: '/nope' cannot be run ("),
        (["--prefill", "L4"], "labcli: --prefill means nothing without --prompt; accepted: --prompt FILE"),
        (["--prompt", "none.txt"], "labcli: 'none.txt' cannot be read (No such file"),
        (["--prompt", "p.txt", "--num-blocks", "3"], "labcli: --num-blocks means nothing with --prompt; accepted: "),
        (["--prompt", "p.txt", "--format", "vllm"], "labcli: --format vllm means nothing with --prompt; accepted: "),
        (["--prompt", "p.txt", "--prefill", "Z80"], "labcli: gpu is 'Z80'; accepted: H100 SXM, "),
        (["--prompt", "p.txt", "--prefill", "engine", "--shape", "qwen3-8b"], "labcli: --shape means nothing with --prefill engine"),
        (["--prompt", "ids.json", "--model", "smollm2"], "labcli: --model means nothing with token ids and a GPU of the cost model"),
        (["--prompt", "p.txt", "--prefill", ""], "labcli: gpu is ''; accepted: H100 SXM, "),
    ],
)
def test_bad_usage_is_one_line(labcli_command, tmp_path, arguments, line):
    (tmp_path / "ids.json").write_text("[1, 2, 3]")
    result = labcli_command("hash-bench", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(line)
    assert "accepted: " in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_an_algorithm_without_its_package_is_skipped_with_a_line(labcli_command, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "xxhash", None)
    result = labcli_command(*SMALL, "--no-save")
    assert result.exit_code == 0
    assert "labcli: skipping xxhash: " in result.stderr and "pip install xxhash" in result.stderr
    assert "\nsha256 " in result.stdout and "\nxxhash" not in result.stdout
    alone = labcli_command(*SMALL, "--no-save", "--algorithms", "xxhash")
    assert alone.exit_code == 1


def test_an_interrupted_run_keeps_its_trials(labcli_command, monkeypatch, tmp_path):
    original, calls = labs.benches.hash_cost.HashBench.run_trial, []

    def run_trial(self):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(original(self))

    monkeypatch.setattr(labs.benches.hash_cost.HashBench, "run_trial", run_trial)
    result = labcli_command(*SMALL)
    assert result.exit_code == 130
    (path,) = tmp_path.glob("results/hash-bench/*.json")
    assert f"saved in results/hash-bench/{path.name}" in result.stderr
    record = json.loads(path.read_text())
    assert (record["status"], {len(one["samples"]) for one in record["measurements"]}) == ("interrupted", {2})


# vLLM beside us


def test_vllm_is_timed_in_turns_and_every_name_compared(labcli_command, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(write_stub_vllm(tmp_path / "stub")))
    result = labcli_command(*SMALL, "--against", "vllm")
    assert result.exit_code == 0
    assert "Beside vLLM 0.0.stub" in result.stdout
    assert re.search(r"(?m)^sha256 +all +[\d,]+ +\d+\.\d\d \[\d", result.stdout)
    assert "labcli: skipping xxhash: vLLM's interpreter: " in result.stderr
    record = json.loads(next(tmp_path.glob("results/hash-bench/*.json")).read_text())
    assert rows(record, "peer") == ["sha256"]
    (equal,) = [one for one in record["measurements"] if one["name"] == "equal_names"]
    assert (equal["samples"], equal["predicted"]["value"]) == ([20], 20)


def test_a_prompt_without_a_block_has_nothing_to_compare(labcli_command, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(write_stub_vllm(tmp_path / "stub")))
    (tmp_path / "ids.json").write_text("[1, 2, 3]")
    result = labcli_command("hash-bench", "--prompt", "ids.json", "--against", "vllm", "--no-save")
    assert result.exit_code == 0 and "nothing to compare with vLLM" in result.stdout


def test_a_name_that_differs_from_vllms_fails_the_run(labcli_command, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(write_stub_vllm(tmp_path / "stub", wrong=True)))
    result = labcli_command(*SMALL, "--against", "vllm", "--algorithms", "sha256")
    assert result.exit_code == 1
    assert re.search(r"(?m)^sha256 +\d+ of 20 ", result.stdout)
    assert re.fullmatch(r"labcli: sha256: \d+ of 20 names equal vLLM 0\.0\.stub's\n", result.stderr)
    assert json.loads(next(tmp_path.glob("results/hash-bench/*.json")).read_text())["status"] == "disagrees"


# A prompt


def test_a_prompt_of_token_ids_is_named_beside_its_prefill(labcli_command, tmp_path):
    (tmp_path / "p.json").write_text(json.dumps({"prompt_token_ids": list(range(1_000, 1_100))}))
    result = labcli_command("hash-bench", "--prompt", "p.json", "--prefill", "L4", "--trials", "2")
    assert result.exit_code == 0
    assert "token ids: 100 tokens = 6 blocks of 16, named, and 4 tokens in no full block, unnamed" in result.stdout
    assert "llama-3-8b on L4, cost model, MFU 0.45" in result.stdout
    record = json.loads(next(tmp_path.glob("results/hash-bench/*.json")).read_text())
    assert record["details"]["prompt"] == {"num_tokens": 100, "num_blocks": 6, "num_unnamed": 4}
    assert rows(record, "prefill", "prompt") == ["prefill"]
    assert not rows(record, "whole", "growth")


def test_a_prompt_of_text_is_tokenised_and_kept_out_of_the_record(labcli_command, tmp_path):
    (tmp_path / "p.txt").write_text("Tell nobody this. " * 40)
    arguments = ("--prompt", "p.txt", "--model", "synthetic:tiny", "--trials", "2", "--algorithms", "sha256", "--block-size", "32")
    result = labcli_command("hash-bench", *arguments)
    assert result.exit_code == 0
    assert "text: 720 tokens = 22 blocks of 32" in result.stdout and "tokenising" in result.stdout
    text = next(tmp_path.glob("results/hash-bench/*.json")).read_text()
    assert "Tell" not in text and "nobody" not in text and "p.txt" not in text
    assert "Tell" not in result.stdout + result.stderr


def test_a_prompt_that_fills_no_block_is_no_error(labcli_command, tmp_path):
    (tmp_path / "p.txt").write_text("Short")
    result = labcli_command("hash-bench", "--prompt", "p.txt", "--model", "synthetic:tiny", "--no-save")
    assert result.exit_code == 0
    assert "5 tokens = 0 blocks of 16, named, and 5 tokens in no full block, unnamed" in result.stdout


def test_the_prefill_can_be_measured_on_the_engine(labcli_command, tmp_path):
    (tmp_path / "p.txt").write_text("Some words. " * 10)
    arguments = ("--prompt", "p.txt", "--model", "synthetic:tiny", "--prefill", "engine", "--trials", "1", "--no-save")
    result = labcli_command("hash-bench", *arguments, "--algorithms", "xxhash")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"prefill: synthetic:tiny \w+ on \w+, measured", result.stdout)
