"""Lab 01: its counts on the simulated target, what a broken rule does to them, and sizes it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import ConfigError
from engine.kvcache import block_hash
from labs import lab_01_hash_cost
from labs.lab_01_hash_cost import LAB, Config
from tests.broken_rules import name_blocks_without_their_parents
from tests.labs.fake_session import FakeSession

QUICK = replace(LAB.quick, trials=2)


def run_lab(config=QUICK):
    return LAB.run(FakeSession(), config)


def value(report, name, row):
    (one,) = [one for one in report.measurements if (one.name, one.row) == (name, row)]
    return one.value


def test_the_prompt_of_the_other_labs_has_137_names_and_8_tokens_without():
    report = run_lab(Config(trials=1, growth_tokens=(100, 200, 300), num_requests=1))
    assert report.agrees
    for algorithm in Config().algorithms:
        assert value(report, "names", algorithm) == value(report, "as defined", algorithm) == 137
        assert value(report, "unnamed", algorithm) == 8
        assert value(report, "new", algorithm) == 13  # ⌊2,400/16⌋ − 137
    assert sum(value(report, "recorded", algorithm) for algorithm in Config().algorithms) == 89
    assert value(report, "recorded", "SGLang's pages") == 21


def test_the_ttft_is_the_cost_models_on_sim_and_that_is_said():
    report = run_lab(Config(trials=1, growth_tokens=(100, 200, 300), num_requests=2))
    (ttft,) = [one for one in report.measurements if one.name == "ttft_cold"]
    assert ttft.samples == pytest.approx((0.0823, 0.0823), abs=2e-4)
    assert "cost model" in ttft.note
    assert not [one for one in report.measurements if one.name == "tokenising"]


def break_parent(monkeypatch):
    monkeypatch.setattr(block_hash.BlockHasher, "extend", name_blocks_without_their_parents)
    one = block_hash.BlockHasher.serialise_block
    monkeypatch.setattr(block_hash.BlockHasher, "serialise_block", lambda self, parent, *rest: one(self, b"", *rest))
    monkeypatch.setattr(
        block_hash.BlockHasher, "hash_block", lambda self, parent, ids, *_: self._digest(self.serialise_block(parent, ids))
    )


def break_a_recorded_digest(monkeypatch):
    entries = lab_01_hash_cost.vllm_block_hashes()
    wrong = f"{int(entries[20].digest[:2], 16) ^ 1:02x}{entries[20].digest[2:]}"
    changed = [*entries[:20], replace(entries[20], digest=wrong), *entries[21:]]
    monkeypatch.setattr(lab_01_hash_cost, "vllm_block_hashes", lambda: changed)


def break_the_append(monkeypatch):
    original = block_hash.BlockHasher.extend

    def extend(self, block_hashes, token_ids, identity, exact_ints=False):
        original(self, block_hashes, token_ids, identity)
        if len(token_ids) % self.block_size and len(block_hashes) == len(token_ids) // self.block_size:
            block_hashes.append(block_hashes[-1])  # a name for a block that is not full

    monkeypatch.setattr(block_hash.BlockHasher, "extend", extend)


@pytest.mark.parametrize("broken", [break_parent, break_a_recorded_digest], ids=lambda rule: rule.__name__)
def test_a_broken_rule_is_not_met(monkeypatch, broken):
    broken(monkeypatch)
    assert not run_lab().agrees


def test_names_of_blocks_that_are_not_full_are_not_met(monkeypatch):
    break_the_append(monkeypatch)
    session = FakeSession()
    with pytest.raises(AssertionError, match="unequal names"):  # its two ways of naming part
        LAB.run(session, replace(QUICK, system_tokens=250))
    assert any(one.agrees is False for one in session.measurements)


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"algorithms": ("md5",)}, "algorithms is 'md5'; accepted: sha256"),
        ({"block_size": 4_000}, "block_size is 4000; accepted: a whole number from 1 to 2200"),
        ({"growth_tokens": (100, 50, 200)}, "growth_tokens is '100,50,200'; accepted: at least three rising"),
        ({"growth_tokens": (100, 200)}, "growth_tokens"),
        ({"trials": 0}, "trials is 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused_by_name(fields, named):
    with pytest.raises(ConfigError, match=named):
        Config(**fields)
