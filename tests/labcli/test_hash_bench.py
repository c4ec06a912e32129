"""`labcli hash-bench` times four algorithms, checks what was typed, and records raw samples."""

import json

import pytest

from engine.kvcache import block_hash
from labs.hash_cost import Config, make_blocks, measure_hash_cost

SMALL = ("hash-bench", "--num-blocks", "20", "--block-size", "4", "--trials", "3")


def test_the_table_has_a_line_for_each_algorithm_and_the_record_all_samples(labcli_command, tmp_path):
    result = labcli_command(*SMALL)
    assert result.exit_code == 0
    for name in ("sha256 ", "sha256_cbor ", "xxhash ", "xxhash_cbor "):
        assert f"\n{name}" in result.stdout
    (path,) = tmp_path.glob("results/hash-bench/*.json")
    record = json.loads(path.read_text())
    assert [len(one["samples"]) for one in record["measurements"]] == [3, 3, 3, 3]
    assert record["lab_config"]["num_blocks"] == 20
    assert record["lab"]["number"] is None


@pytest.mark.parametrize("chosen", [["--algorithms", "xxhash", "--algorithms", "sha256"], ["--algorithms", "xxhash,sha256"]])
def test_json_is_the_record_of_the_chosen_algorithms(labcli_command, chosen):
    result = labcli_command(*SMALL, "--json", "--no-save", *chosen)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [one["row"] for one in json.loads(result.stdout)["measurements"]] == ["xxhash", "sha256"]


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--num-blocks", "0"], "labcli: num_blocks is 0; accepted: a whole number from 1 to "),
        (["--block-size", "-1"], "labcli: block_size is -1; accepted: "),
        (["--trials", "0"], "labcli: trials is 0; accepted: "),
        (["--vocab-size", "0"], "labcli: vocab_size is 0; accepted: "),
        (["--seed", "-1"], "labcli: seed is -1; accepted: a whole number from 0 to "),
        (["--algorithms", "md5"], "labcli: algorithms is 'md5'; accepted: sha256, sha256_cbor, xxhash, xxhash_cbor"),
        (["--num-blocks", "x"], "labcli: '--num-blocks': "),
        (["--blocks", "1"], "labcli: labcli hash-bench has no option --blocks; accepted: --num-blocks, "),
    ],
)
def test_bad_usage_is_one_line(labcli_command, arguments, line):
    result = labcli_command("hash-bench", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(line)
    assert "accepted: " in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_algorithm_without_its_package_is_skipped_with_a_line(labcli_command, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "xxhash", None)
    result = labcli_command(*SMALL, "--no-save")
    assert result.exit_code == 0
    assert "labcli: skipping xxhash: " in result.stderr and "pip install xxhash" in result.stderr
    assert "\nsha256 " in result.stdout and "\nxxhash" not in result.stdout
    alone = labcli_command(*SMALL, "--no-save", "--algorithms", "xxhash")
    assert alone.exit_code == 1


def test_the_timed_chain_is_the_engines():
    config = Config(num_blocks=5, block_size=4, trials=1, algorithms=("sha256",))
    hash_function = block_hash.get_hash_function("sha256")
    parent = hash_function(block_hash.resolve_none_hash_seed("sha256"))
    for block in make_blocks(config):
        parent = block_hash.hash_block_tokens(hash_function, parent, block)
    assert measure_hash_cost("sha256", make_blocks(config), config).last_digest == parent.hex()


def test_a_chain_that_differs_from_the_engines_is_found_out(monkeypatch):
    import labs.hash_cost

    config = Config(num_blocks=5, block_size=4, trials=1, algorithms=("sha256",))
    without_parent = lambda function, parent, tokens: block_hash.hash_block_tokens(function, b"", tokens)  # noqa: E731
    monkeypatch.setattr(labs.hash_cost, "hash_block_tokens", without_parent)
    with pytest.raises(AssertionError, match="differs from the engine's"):
        measure_hash_cost("sha256", make_blocks(config), config)
