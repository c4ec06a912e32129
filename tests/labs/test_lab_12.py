"""Lab 12: names of real processes meet the rule, and every engine that breaks it is noticed."""

from __future__ import annotations

import sys

import pytest

from engine.errors import ConfigError, MissingPackage
from labs import lab_12_two_processes
from labs.lab_12_two_processes import LAB, Config
from labs.peers import block_name_worker
from labs.peers.block_name_worker import NamingTask, ask_workers, name_blocks
from labs.protocol import LabReport
from labs.targets.base import TargetError
from tests.labs.fake_session import FakeSession

ALGORITHMS = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
PROCESSES, IMAGES, ENGINE = lab_12_two_processes._PROCESSES, lab_12_two_processes._IMAGES, lab_12_two_processes._ENGINE


def run_lab(config: Config = LAB.quick) -> LabReport:
    return LAB.run(FakeSession(), config)


@pytest.fixture(scope="module")
def report() -> LabReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONHASHSEED", raising=False)
        return run_lab(Config())


def value(report: LabReport, group: str, row: str, name: str) -> int:
    (one,) = [one for one in report.measurements if (one.group, one.row, one.name) == (group, row, name)]
    return one.value


@pytest.mark.parametrize(
    ("algorithm", "unset", "same"), [("sha256", 32, 32), ("sha256_cbor", 32, 32), ("xxhash", 0, 32), ("xxhash_cbor", 0, 32)]
)
def test_sha256_agrees_without_a_hash_seed_xxhash_only_with_the_same_one(report, algorithm, unset, same):
    found = [value(report, PROCESSES, algorithm, column) for column in ("unset", "same", "two", "one")]
    assert found == [unset, same, 0, 0]  # a hash seed replaces the fixed start of sha256 too


def test_page_hashes_agree_whatever_the_environment(report):
    assert {value(report, PROCESSES, "page hashes", column) for column in ("unset", "same", "two", "one")} == {32}


@pytest.mark.parametrize(("algorithm", "equal"), [("sha256", 16), ("xxhash", 16), ("sha256_cbor", 32), ("xxhash_cbor", 32)])
def test_equal_objects_change_a_pickled_name_and_cbor_is_immune(report, algorithm, equal):
    assert value(report, IMAGES, algorithm, "one object") == 32
    assert value(report, IMAGES, algorithm, "two objects") == equal


def test_a_router_finds_the_blocks_of_an_engine_where_the_names_agree(report):
    own = [value(report, ENGINE, row, "own") for row in (*ALGORITHMS, "page hashes")]
    other = [value(report, ENGINE, row, "other") for row in (*ALGORITHMS, "page hashes")]
    assert own == [32, 32, 0, 0, 32] and other == [0, 0, 0, 0, 32]


def test_with_a_hash_seed_of_its_own_this_process_agrees_with_a_router_that_has_it(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "1")  # the lab's other seed: it takes the first one for the other router
    report = run_lab()
    assert report.agrees and report.details["has_hash_seed"] is True  # and not which: it may be a secret
    assert [value(report, ENGINE, row, "own") for row in ALGORITHMS] == [8] * 4
    assert [value(report, ENGINE, row, "other") for row in ALGORITHMS] == [0] * 4


def test_every_prediction_is_met_and_the_cache_was_proven_cold(report):
    assert report.agrees and report.cache_state == "cold" and all(one.agrees for one in report.measurements)


def in_the_workers(monkeypatch, code):
    """Run `code` in every worker before it names anything."""
    start = f"from labs.peers import block_name_worker\n{code}\nblock_name_worker.main()"
    monkeypatch.setattr(block_name_worker, "COMMAND", (sys.executable, "-c", start))


@pytest.mark.parametrize(
    "broken",
    [
        # Every algorithm starts at random, or none does.
        "import os\nfrom engine.kvcache import block_hash\n"
        "block_hash.resolve_none_hash_seed = lambda algorithm: os.urandom(32).hex()",
        "from engine.kvcache import block_hash\nblock_hash.resolve_none_hash_seed = lambda algorithm: 'fixed'",
        # PYTHONHASHSEED is for xxhash alone.
        "import os\nfrom engine.kvcache import block_hash\none = block_hash.resolve_none_hash_seed\n"
        "block_hash.resolve_none_hash_seed = lambda name: one(name) if name[0] == 'x' else 'vllm-none-hash'",
        # Names without the parent: blocks behind the image are equal again.
        "from engine.kvcache import block_hash\nfrom tests.broken_rules import name_blocks_without_their_parents\n"
        "block_hash.BlockHasher.extend = name_blocks_without_their_parents",
        # Identifiers made one object: names would no longer be vLLM's.
        "import sys\nfrom engine.kvcache.cache_identity import CacheIdentity\none = CacheIdentity.extra_keys\n"
        "intern = lambda keys: keys and tuple((k[0], sys.intern(k[1]), *k[2:]) for k in keys)\n"
        "CacheIdentity.extra_keys = lambda self, start, end: intern(one(self, start, end))",
    ],
    ids=["all random", "none random", "seed ignored by sha256", "no parent", "interned"],
)  # fmt: skip
def test_a_process_that_names_by_another_rule_is_noticed(monkeypatch, broken):
    in_the_workers(monkeypatch, broken)
    assert not run_lab().agrees


@pytest.mark.parametrize(
    ("num_equal", "told"),
    [
        (8, "8 of 8 names (both have the same start)"), (0, "0 of 8 names (each has a start of its own)"),
        (3, "3 of 8 names (which no start explains)"), (-1, "nothing: they did not make equally many names"),
    ],
)  # fmt: skip
def test_a_finding_says_what_so_many_equal_names_mean(num_equal, told):
    assert lab_12_two_processes._agreement(num_equal, 8) == told


def test_a_hash_seed_stands_in_the_configuration_alone():
    report = run_lab(Config(num_blocks=4, algorithms=("xxhash",), hash_seed=987_654, other_hash_seed=876_543))
    assert report.agrees
    assert not any(seed in repr(report) for seed in ("987654", "987,654", "876543", "876,543"))


def test_a_worker_finds_this_package_from_anywhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" in entry])
    (answer,) = ask_workers(NamingTask(tuple(range(32)), 16, 16, ("sha256",), 16), [None])
    assert len(answer.pages) == 2


def test_a_worker_that_fails_is_one_line(monkeypatch):
    in_the_workers(monkeypatch, "raise SystemExit('no such thing')")
    with pytest.raises(TargetError, match="^a process that names blocks failed: no such thing$"):
        run_lab()


def test_a_worker_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(block_name_worker, "TIMEOUT_S", 0.2)
    in_the_workers(monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(TargetError, match="did not answer within 0.2 s"):
        run_lab()


def test_a_worker_gets_nothing_of_this_environment_and_nothing_on_its_command_line(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THIS_PROCESS", "1")
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    task = NamingTask(tuple(range(100, 132)), 16, 16, ("xxhash",), 16)
    with_seed = name_blocks(task)
    check = (
        "import os, sys\nassert not {'SECRET_OF_THIS_PROCESS', 'PYTHONHASHSEED'} & set(os.environ)\n"
        "assert '100' not in str(sys.argv)"
    )
    in_the_workers(monkeypatch, check)
    (answer,) = ask_workers(task, [None])
    assert answer.pages == with_seed.pages and answer.blocks != with_seed.blocks
    assert "100" not in repr(task)


def test_a_missing_package_is_named_before_anything_runs(monkeypatch):
    def missing(name):
        def call(_):
            raise MissingPackage("the xxhash algorithms need xxhash: pip install xxhash")

        return call

    monkeypatch.setattr(lab_12_two_processes, "get_hash_function", missing)
    with pytest.raises(TargetError, match="accepted: --set algorithms=sha256"):
        run_lab()


def test_one_algorithm_and_any_sizes_are_enough():
    report = run_lab(Config(num_blocks=5, block_size=2, page_size=3, algorithms=("xxhash_cbor",), hash_seed=7, other_hash_seed=0))
    assert report.agrees and report.cache_state == "cold"
    assert value(report, PROCESSES, "page hashes", "unset") == 3  # ⌊10/3⌋


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"algorithms": ("md5",)}, "algorithms is 'md5'; accepted: sha256"), ({"algorithms": ()}, "algorithms"),
        ({"algorithms": ("sha256", "sha256")}, "algorithms is 'sha256,sha256'; accepted: each once"),
        ({"block_size": 1}, "block_size is 1; accepted"), ({"num_blocks": 1}, "num_blocks is 1; accepted"),
        ({"hash_seed": -1}, "hash_seed is -1; accepted"), ({"hash_seed": 2**32}, "hash_seed is 4294967296; accepted"),
        ({"other_hash_seed": 0}, "other_hash_seed is 0; accepted: another than hash_seed"), ({"page_size": 0}, "page_size is 0"),
    ],
)  # fmt: skip
def test_an_impossible_configuration_is_named(fields, named):
    with pytest.raises(ValueError, match=named):
        Config(**fields)


def test_a_block_longer_than_the_model_takes_is_named():
    with pytest.raises(ConfigError, match="block_size is 10000; accepted: at most 4095 with this model"):
        run_lab(Config(block_size=10_000))


def test_a_prompt_longer_than_the_model_takes_is_named():
    with pytest.raises(ConfigError, match="num_blocks is 100000; accepted: at most"):
        run_lab(Config(num_blocks=100_000))
