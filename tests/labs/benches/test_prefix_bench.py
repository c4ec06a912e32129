"""The prefix caching bench: passes, what is told apart, ratios, differing outputs."""

import pytest

from labs.benches.prefix_bench import PASSES, PrefixBench
from labs.benches.prefix_bench_prompts import BenchRequest
from tests.labs.fake_timed_engine import FakeTimedEngine

REQUESTS = [BenchRequest(tuple(range(10)), 0), BenchRequest(tuple(range(50, 60)), 1), BenchRequest(tuple(range(10)), 0)]


def run(*engines, trials=2, **fields):
    made = PrefixBench(REQUESTS, 3, engines, **fields)
    for _ in range(trials):
        made.run_trial()
    return made


def test_the_first_pass_starts_from_nothing_and_the_second_finds_it_all():
    made = run(FakeTimedEngine())
    assert [made.of("labcli", name).hits for name in PASSES] == [[8, 8], [24, 24]]
    assert made.engines[0].calls == ["reset", "serve 3", "serve 3"] * 2


def test_cold_and_warm_first_tokens_are_told_apart():
    first, again = (run(FakeTimedEngine(seconds=3.0)).of("labcli", name) for name in PASSES)
    assert (len(first.ttfts_s(False)), len(first.ttfts_s(True))) == (4, 2)
    assert (len(again.ttfts_s(False)), len(again.ttfts_s(True))) == (0, 6)
    assert first.ttfts_s(True) == pytest.approx([1.0] * 2) and first.token_gaps_s == pytest.approx([1.0] * 12)


def test_without_a_cache_there_is_one_pass():
    assert [one.name for one in run(FakeTimedEngine(), again=False).passes] == ["first pass"]
    made = run(FakeTimedEngine(), FakeTimedEngine("transformers generate", 30.0, caches=False))
    other = made.of("transformers generate", "again")
    assert other.served == [] and made.ratio("transformers generate", "again") is None
    assert made.ratio("transformers generate", "first pass").value == pytest.approx(30.0)
    first = made.of("transformers generate", "first pass")
    assert first.hits == [] and first.ttfts_s(False) == [] and first.token_gaps_s == []


def test_rates_count_requests_prompts_and_outputs():
    made = run(FakeTimedEngine(seconds=2.0))
    assert made.rates(made.of("labcli", "first pass")) == pytest.approx((1.5, 15.0, 4.5))


def test_differing_outputs_are_named_by_request_and_position():
    class Late(FakeTimedEngine):
        def serve(self, prompts, num_outputs):
            served = super().serve(prompts, num_outputs)
            ids = [list(one) for one in served.output_ids]
            ids[1][2] += 1
            return type(served)(served.seconds, tuple(map(tuple, ids)), served.token_times_s, served.num_cached_tokens)

    assert run(FakeTimedEngine(), Late("vLLM")).differing_outputs("vLLM") == [(1, 2)]
    assert run(FakeTimedEngine(), FakeTimedEngine("vLLM")).differing_outputs("vLLM") == []


def test_who_goes_first_changes():
    order = []

    class Noting(FakeTimedEngine):
        def reset(self):
            order.append(self.name)
            super().reset()

    run(Noting("labcli"), Noting("vLLM"))
    assert order == ["labcli", "vLLM", "vLLM", "labcli"]


def test_a_warm_up_sends_other_tokens():
    engine = FakeTimedEngine()
    made = PrefixBench(REQUESTS, 3, [engine])
    made.warm_up(1000)
    assert not engine.known & {tuple(range(4)), tuple(range(50, 54))}
