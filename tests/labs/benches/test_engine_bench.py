"""The engine bench: what is sent, in what order, and what is made of the times."""

import pytest

from engine.errors import ConfigError
from labs.benches.engine_bench import WORKLOADS, Config, EngineBench
from tests.labs.fake_timed_engine import FakeTimedEngine

SMALL = Config(
    prompt_tokens=20, cached_tokens=16, repeat_tokens=10, repeat_count=5, repeat_outputs=2, decode_tokens=6, decode_requests=3,
    decode_outputs=5, trials=2,
)  # fmt: skip


def bench(*engines, config=SMALL):
    return EngineBench(config, engines, vocab_size=1000, block_size=4)


def test_hits_equal_their_predictions_in_every_workload_and_trial():
    made = bench(FakeTimedEngine())
    made.warm_up()
    for _ in range(2):
        made.run_trial()
    found = {workload: made.of("labcli", workload).num_cached_tokens for workload in WORKLOADS}
    assert found == {workload: [made.expected_hits(workload).value] * 2 for workload in WORKLOADS}
    assert found["warm"] == [16, 16] and found["repeat"] == [4 * 8] * 2


def test_a_cache_that_forgets_or_finds_the_last_token_is_seen():
    class Greedy(FakeTimedEngine):
        def serve(self, prompts, num_outputs):
            served = super().serve(prompts, num_outputs)
            return type(served)(served.seconds, served.output_ids, served.token_times_s, tuple(c + (c > 0) * 4 for c in served.num_cached_tokens))

    made = bench(Greedy())
    made.run_trial()
    assert made.of("labcli", "repeat").num_cached_tokens != [made.expected_hits("repeat").value]


def test_all_engines_get_the_same_prompts_and_take_turns_at_going_first():
    order, prompts = [], {}

    class Noting(FakeTimedEngine):
        def serve(self, given, num_outputs):
            order.append(self.name)
            prompts.setdefault(self.name, []).append([tuple(one) for one in given])
            return super().serve(given, num_outputs)

    made = bench(Noting("labcli"), Noting("vLLM"))
    made.run_trial()
    made.run_trial()
    assert prompts["labcli"] == prompts["vLLM"]
    assert [order[0], order[len(order) // 2]] == ["labcli", "vLLM"]
    first, second = prompts["labcli"][:4], prompts["labcli"][4:]
    assert first != second, "a trial that repeats the prompts of another finds them in a cache that was not reset"


def test_warm_comes_right_after_cold_and_everything_else_after_a_reset():
    engine = FakeTimedEngine()
    bench(engine).run_trial()
    assert engine.calls == ["reset", "serve 1", "serve 1", "reset", "serve 5", "reset", "serve 3"]


def test_ratios_are_the_peers_time_over_ours_and_decode_leaves_the_first_token_out():
    made = bench(FakeTimedEngine("labcli", 1.0), FakeTimedEngine("vLLM", 3.0))
    for _ in range(3):
        made.run_trial()
    assert {workload: made.ratio("vLLM", workload).value for workload in WORKLOADS} == pytest.approx(dict.fromkeys(WORKLOADS, 3.0))
    decode = made.of("labcli", "decode")
    assert decode.seconds == pytest.approx([0.8] * 3)
    assert made.tokens_per_s(decode) == pytest.approx(3 * 4 / 0.8)
    assert made.tokens_per_s(made.of("labcli", "repeat")) == pytest.approx(5 * 2 / 1.0)


def test_other_tokens_are_counted():
    made = bench(FakeTimedEngine("labcli"), FakeTimedEngine("vLLM", shift=1))
    made.run_trial()
    assert made.same_outputs("vLLM") == (0, 1 + 1 + 5 + 3)
    made = bench(FakeTimedEngine("labcli"), FakeTimedEngine("vLLM"))
    made.run_trial()
    assert made.same_outputs("vLLM") == (10, 10)


def test_an_engine_that_fails_half_way_leaves_no_half_trial():
    class Failing(FakeTimedEngine):
        def serve(self, prompts, num_outputs):
            if len(prompts) == 3:
                raise RuntimeError("no")
            return super().serve(prompts, num_outputs)

    made = bench(FakeTimedEngine("labcli"), Failing("vLLM"))
    with pytest.raises(RuntimeError):
        made.run_trial()
    assert not any(times.seconds for times in made.times)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"trials": 0}, "trials is 0; accepted: a whole number from 1"),
        ({"cached_tokens": 2200}, "cached_tokens is 2200; accepted: a whole number below prompt_tokens, 2200"),
        ({"decode_outputs": 1}, "decode_outputs is 1; accepted: a whole number from 2"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Config(**fields)


def test_cached_tokens_must_be_whole_blocks():
    with pytest.raises(ConfigError, match="cached_tokens is 18; accepted: a multiple of the block size, 4"):
        bench(FakeTimedEngine(), config=Config(prompt_tokens=20, cached_tokens=18))


def test_the_pool_holds_every_workload():
    config = Config()
    assert config.longest_request == 2201
    assert config.pool_tokens >= max(2 * 2200, 256 + 50 * (10 + 32), 32 * (128 + 32 + 32))
