"""vLLM's hash in another interpreter: the protocol with a stand-in, and the real one where LABCLI_VLLM_PYTHON names it."""

from __future__ import annotations

import os

import pytest

from engine.config import HASH_ALGORITHMS
from labs.hash_comparison import ComparedBench
from labs.hash_cost import Config, NamedChain, make_token_ids
from labs.peers.vllm_hashing import PeerError, PeerUnavailable, VllmHashing
from tests.labs.stub_vllm import write_stub_vllm

TOKENS = make_token_ids(Config(num_blocks=50, block_size=4))


@pytest.fixture
def stub(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(write_stub_vllm(tmp_path)))


def test_names_and_times_come_from_the_other_interpreter(stub):
    chain = NamedChain("sha256", TOKENS, 4, "a seed")
    with VllmHashing() as peer:
        assert peer.version == "0.0.stub"
        peer.load(TOKENS + [1, 2], 4)
        assert peer.names("sha256", "a seed") == [name.hex() for name in chain.names]
        assert peer.names("sha256", "another") != [name.hex() for name in chain.names]
        assert peer.time("sha256", "a seed") > 0


def test_trials_are_taken_in_turns_and_names_compared(stub):
    with VllmHashing() as peer:
        bench = ComparedBench([NamedChain("sha256", TOKENS, 4)], peer)
        for _ in range(3):
            bench.run_trial()
    (comparison,) = bench.comparisons
    assert comparison.num_equal_names == 50
    assert len(comparison.peer_s) == len(comparison.cost.whole_s) == len(comparison.cost.digest_s) == 3
    ratio = comparison.whole_ratio
    assert ratio.low <= ratio.value <= ratio.high
    assert comparison.floor_ratio.value > ratio.value / 100


def test_a_peer_that_names_otherwise_is_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(write_stub_vllm(tmp_path, wrong=True)))
    token_ids = [2] * 8 + [3] * 8  # the stand-in errs where a block begins with an odd id, and so in all behind it
    with VllmHashing() as peer:
        bench = ComparedBench([NamedChain("sha256", token_ids, 4)], peer)
        bench.run_trial()
    assert bench.comparisons[0].num_equal_names == 2


def test_what_fails_there_is_told_here(stub):
    with VllmHashing() as peer:
        peer.load(TOKENS, 4)
        with pytest.raises(PeerError, match="No module named 'xxhash'"):
            peer.names("xxhash", "0")
        assert peer.names("sha256", "0")  # and it goes on


@pytest.mark.parametrize("python, message", [("/nope/python", "cannot be run"), (None, "cannot import vLLM .*ModuleNotFoundError"), ("/bin/true", "its process ended")])
def test_an_interpreter_without_vllm_is_refused(python, message, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(PeerUnavailable, match=f"{message}.*accepted: --vllm-python"):
        VllmHashing(python)


@pytest.mark.skipif("LABCLI_VLLM_PYTHON" not in os.environ, reason="LABCLI_VLLM_PYTHON names no Python with vLLM")
@pytest.mark.parametrize("vocab_size", [300, 32_000, 200_000])
def test_the_real_vllm_gives_every_block_our_name(vocab_size):
    token_ids = make_token_ids(Config(num_blocks=2_000, block_size=16, vocab_size=vocab_size))
    with VllmHashing(os.environ["LABCLI_VLLM_PYTHON"]) as peer:
        peer.load(token_ids, 16)
        for algorithm in HASH_ALGORITHMS:
            chain = NamedChain(algorithm, token_ids, 16)
            assert peer.names(algorithm, chain.none_hash_seed) == [name.hex() for name in chain.names]
