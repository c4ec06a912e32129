"""vLLM's hash in another interpreter: the protocol with a stand-in, and the real one where LABCLI_VLLM_PYTHON names it."""

from __future__ import annotations

import os

import pytest

from engine.config import HASH_ALGORITHMS
from labs.benches.hash_comparison import ComparedBench, HashComparison
from labs.benches.hash_cost import Config, HashCost, NamedChain, make_token_ids
from labs.peers.vllm_hashing import PeerEnded, PeerError, PeerUnavailable, VllmHashing
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
        # The mean of many rounds is about one round, not their sum.
        assert peer.time("sha256", "a seed", 200) < 50 * peer.time("sha256", "a seed", 1)


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


def test_ratios_say_how_many_times_as_fast_we_are():
    cost = HashCost("sha256", 1_000, 16, whole_s=(0.001,) * 3, append_s=(0.004,) * 3, digest_s=(0.0005,) * 3)
    comparison = HashComparison(cost, (0.002,) * 3, 1_000)
    assert comparison.whole_ratio.value == pytest.approx(2)
    assert comparison.append_ratio.value == pytest.approx(0.5)
    assert comparison.floor_ratio.value == pytest.approx(4)
    assert comparison.peer_ns_per_block == pytest.approx(2_000)


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


def test_a_peer_that_does_not_answer_is_ended(stub, monkeypatch):
    with VllmHashing() as peer:
        peer.load(TOKENS, 4)
        monkeypatch.setattr("labs.peers.vllm_hashing.ANSWER_TIMEOUT_S", 0.2)
        with pytest.raises(PeerEnded, match="did not answer within 0 s"):
            peer.time("sha256", "0", 10_000_000)
        assert peer._process.poll() is not None


def test_a_peer_that_dies_is_told_from_one_that_answers_with_an_error(stub):
    with VllmHashing() as peer:
        peer._process.kill()
        with pytest.raises(PeerEnded, match=r"^vLLM's process ended \(Killed\)$"):
            peer.names("sha256", "0")


def test_an_interrupted_start_leaves_no_process(stub, monkeypatch):
    started = []
    monkeypatch.setattr(VllmHashing, "_exchange", lambda self, *_: started.append(self._process) or interrupt())
    with pytest.raises(KeyboardInterrupt):
        VllmHashing()
    assert started[0].poll() is not None


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "python, message",
    [
        ("/nope/python", "cannot be run"),
        ("", "cannot be run"),
        (None, "cannot import vLLM .*ModuleNotFoundError"),
        ("/bin/true", "process ended"),
        ("/bin/echo", "answers as no worker does"),
    ],
)
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
