"""The laws: their worked numbers, their edges, and what holds for all sizes."""

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.cost_model import gpu_by_name, model_shape
from labs import theory
from labs.protocol import Prediction
from labs.theory import predict

LLAMA = model_shape("llama-3-8b")
H100 = gpu_by_name("H100 SXM")
MFU = 0.45

units = st.sampled_from([1, 2, 8, 16, 784])
lengths = st.integers(1, 5000)


def cached_tokens(prompts, unit):
    """Hits of prompts sent one after the other, by comparing whole units token by token: the laws' slow twin."""
    hits, earlier = [], []
    for prompt in prompts:
        best = 0
        for other in earlier:
            num_units = 0
            while (
                (num_units + 1) * unit <= min(len(prompt) - 1, len(other))
                and prompt[num_units * unit : (num_units + 1) * unit] == other[num_units * unit : (num_units + 1) * unit]
            ):
                num_units += 1
            best = max(best, num_units * unit)
        hits.append(best)
        earlier.append(prompt)
    return hits


def prompts_sharing(num_requests, shared_tokens, tail_tokens):
    """Requests that share their first tokens and have a tail of their own number, repeated."""
    return [[-1] * shared_tokens + [request] * tail_tokens for request in range(num_requests)]


@pytest.mark.parametrize(
    "prompt_tokens, unit, hits",
    [
        (1999, 16, 1984), (2000, 16, 1984), (2001, 16, 2000), (2200, 16, 2192), (2000, 1, 1999),
        (1, 16, 0), (16, 16, 0), (17, 16, 16),
    ],
)  # fmt: skip
def test_a_repeat_reuses_whole_units_and_never_the_last_token(prompt_tokens, unit, hits):
    assert theory.repeat(prompt_tokens, unit) == hits


def test_a_prompt_of_2200_tokens_has_137_full_blocks_and_125_of_them_are_shared():
    assert theory.full_blocks(2200, 16) == 137
    assert theory.reuse(2000, 2200, 16) == 125 * 16


def test_a_prefix_shorter_than_a_block_is_never_reused():
    assert theory.shared_prefix_hits(49, 240, 900, 784) == 0
    assert theory.shared_prefix_hits(49, 240, 900, 16) == 48 * 240


def test_ten_requests_that_share_2000_of_2200_tokens_hit_18000_of_22000():
    assert theory.shared_prefix_hits(10, 2000, 2200, 16) == 18_000
    assert theory.queries(10, 2200) == 22_000


@given(match_tokens=lengths, prompt_tokens=lengths, unit=units)
def test_reuse_is_whole_units_loses_less_than_one_and_leaves_a_token(match_tokens, prompt_tokens, unit):
    hits = theory.reuse(match_tokens, prompt_tokens, unit)
    assert hits % unit == 0
    assert hits <= prompt_tokens - 1
    assert 0 <= min(match_tokens, prompt_tokens - 1) - hits < unit


@given(
    num_requests=st.integers(1, 5), shared=st.integers(0, 40), tail=st.integers(1, 20), extra=st.integers(1, 20),
    unit=st.sampled_from([1, 4, 16]),
)  # fmt: skip
def test_the_laws_of_series_equal_a_search_through_the_earlier_prompts(num_requests, shared, tail, extra, unit):
    length = shared + tail
    prompts = prompts_sharing(num_requests, shared, tail)
    assert sum(cached_tokens(prompts, unit)) == theory.shared_prefix_hits(num_requests, shared, length, unit)
    same = [[-2] * extra + prompt for prompt in prompts]
    assert sum(cached_tokens(same, unit)) == theory.shared_extra_hits(num_requests, extra, shared, length, unit)
    own = [[~100 - number] * extra + prompt for number, prompt in enumerate(prompts)]
    assert sum(cached_tokens(own, unit)) == theory.unique_prepend_hits(num_requests, extra, length, unit) == 0
    after = [p[:shared] + [100 + number] * extra + p[shared:] for number, p in enumerate(prompts)]
    assert sum(cached_tokens(after, unit)) == theory.unique_append_hits(num_requests, extra, shared, length, unit)
    assert sum(cached_tokens([prompts[0]] * 2, unit)) == theory.repeat(length, unit)


@pytest.mark.parametrize(
    "unit, unique_before, same_before, unique_after, same_after", [(16, 0, 2000, 2000, 2000), (1, 0, 2001, 2000, 2001)]
)
def test_one_extra_token_costs_everything_before_the_prefix_and_nothing_after_it(
    unit, unique_before, same_before, unique_after, same_after
):
    assert theory.unique_prepend_hits(2, 1, 2200, unit) == unique_before
    assert theory.shared_extra_hits(2, 1, 2000, 2200, unit) == same_before == same_after
    assert theory.unique_append_hits(2, 1, 2000, 2200, unit) == unique_after


@pytest.mark.parametrize("num_prepended", range(1, 33))
def test_no_shift_saves_a_prefix_not_even_one_by_whole_blocks(num_prepended):
    assert theory.unique_prepend_hits(10, num_prepended, 2200, 16) == 0


def test_a_salt_for_each_request_leaves_nothing_to_reuse():
    assert theory.fresh_salt_hits(10, 2200, 16) == 0


@pytest.mark.parametrize(
    "prompt_tokens, unit, hits", [(2200, 16, 2176), (17, 16, 0), (16, 16, 0), (33, 16, 16), (1, 16, 0)]
)
def test_a_drafter_recomputes_one_block_more(prompt_tokens, unit, hits):
    assert theory.drafter_hits(prompt_tokens, unit) == hits


@pytest.mark.parametrize("output_tokens, hits", [(4, 0), (5, 16)])
def test_the_last_sampled_token_is_not_offered_to_the_next_turn(output_tokens, hits):
    offered = theory.offered_by_turn(12, output_tokens)
    assert offered == 12 + output_tokens - 1
    assert theory.reuse(offered, 12 + output_tokens + 10, 16) == hits


@given(unit=st.integers(2, 60), others=st.lists(st.integers(0, 300), max_size=5))
def test_the_unit_is_read_from_hits_when_a_match_ends_just_before_the_second_block(unit, others):
    matches = [2 * unit - 1, *others]
    observed = [(match, match + 1, theory.reuse(match, match + 1, unit)) for match in matches]
    assert theory.fitting_units(observed, 400) == [unit]
    assert unit in theory.fitting_units(observed[1:], 400)


def test_the_mean_loss_is_the_mean_over_all_remainders():
    for unit in (1, 16, 784):
        losses = [match - theory.reuse(match, 10_000, unit) for match in range(5 * unit)]
        assert theory.mean_rounding_loss(unit) == sum(losses) / len(losses)
    assert theory.mean_rounding_loss(16) == 7.5


@given(match_tokens=lengths, prompt_tokens=lengths, unit=units)
def test_what_a_match_loses_is_lost_to_whole_blocks_or_to_the_last_token(match_tokens, prompt_tokens, unit):
    match_tokens = min(match_tokens, prompt_tokens)
    to_rounding = theory.rounding_loss(match_tokens, unit)
    to_last_token = theory.last_token_loss(match_tokens, prompt_tokens, unit)
    assert to_rounding + to_last_token == match_tokens - theory.reuse(match_tokens, prompt_tokens, unit)
    assert to_last_token == (unit if match_tokens == prompt_tokens and prompt_tokens % unit == 0 else 0)


@pytest.mark.parametrize("num_dropped, hits", [(0, theory.repeat), (1, theory.drafter_hits)])
@given(prompt_tokens=lengths, unit=units)
def test_the_next_length_that_reuses_more_is_the_first_one_that_does(num_dropped, hits, prompt_tokens, unit):
    longer = theory.next_longer_repeat(prompt_tokens, unit, num_dropped)
    assert hits(longer, unit) > hits(prompt_tokens, unit) == hits(longer - 1, unit)


@given(match_tokens=lengths, unit=units)
def test_the_next_match_that_reuses_more_is_the_first_one_that_does(match_tokens, unit):
    longer = theory.next_longer_match(match_tokens, unit)
    reused = [theory.reuse(match, 10_000, unit) for match in (match_tokens, longer - 1, longer)]
    assert reused[0] == reused[1] < reused[2]


def test_a_prefix_of_240_tokens_hits_in_blocks_of_784_only_when_it_is_784_long():
    assert theory.next_longer_match(240, 784) == 784


def test_a_drafter_recomputes_one_block_more_of_any_match():
    assert theory.drafter_reuse(2000, 2200, 16) == 1984
    assert theory.drafter_reuse(16, 2200, 16) == theory.drafter_reuse(3, 2200, 16) == 0
    assert theory.drafter_reuse(2200, 2200, 16) == theory.drafter_hits(2200, 16)
    for match in (0, 15, 16, 17, 2000, 2200):
        lost = theory.drafter_loss(match, 2200, 16)
        assert theory.drafter_reuse(match, 2200, 16) + lost == theory.reuse(match, 2200, 16)
    assert theory.drafter_shared_prefix_hits(10, 2000, 2200, 16) == 9 * 1984


@pytest.mark.parametrize("output_tokens, hits", [(4, 0), (5, 16)])
def test_the_next_turn_reuses_whole_blocks_of_what_has_kv(output_tokens, hits):
    assert theory.next_turn_hits(12, output_tokens, 16) == hits


def test_ten_requests_of_which_2000_of_2200_tokens_are_shared_hit_81_82_percent():
    hits = theory.shared_prefix_hits(10, 2000, 2200, 16)
    assert round(theory.hit_rate(hits, theory.queries(10, 2200)), 4) == 0.8182


@pytest.mark.parametrize(
    "first, second, length",
    [([], [1], 0), ([1, 2], [1, 2, 3], 2), ((1, 2, 3), [1, 5, 3], 1), ([4], [5], 0), ([7, 7], [7, 7], 2)],
)
def test_the_common_prefix_ends_at_the_first_difference(first, second, length):
    assert theory.common_prefix(first, second) == theory.common_prefix(second, first) == length


@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=6),
    unit=st.sampled_from([1, 2, 4]),
)
def test_a_control_prompt_hits_what_it_shares_with_any_earlier_one(prompts, unit):
    assert theory.control_hits(prompts[-1], prompts[:-1], unit) == cached_tokens(prompts, unit)[-1]
    best = theory.longest_match(prompts[-1], prompts[:-1])
    assert theory.reuse(best, len(prompts[-1]), unit) == cached_tokens(prompts, unit)[-1]


def test_costs_meet_the_worked_numbers():
    assert round(theory.prefill_flops(LLAMA, 0, 2200) / 1e12, 3) == 36.600
    assert round(theory.cold_over_warm(LLAMA, 2000, 2200), 3) == 10.664
    cold_s, warm_s = (theory.prefill_seconds(LLAMA, H100, MFU, start, 2200) for start in (0, 2000))
    assert round((cold_s - warm_s) * 1e3, 1) == 74.5
    assert round(theory.redundant_flops_per_s(LLAMA, 2000, 20) / 1e12, 1) == 663.4
    assert theory.pool_blocks(52.32 * 2**30, LLAMA, 16) == 26_787


def test_what_the_cache_saves_is_the_difference_of_cold_and_warm():
    cold_s, warm_s = (theory.prefill_seconds(LLAMA, H100, MFU, start, 2200) for start in (0, 2000))
    assert theory.saved_seconds(LLAMA, H100, MFU, 2000) == pytest.approx(cold_s - warm_s)
    assert round(theory.redundant_share(LLAMA, 2000, 2200), 4) == 0.9062
    assert round(theory.achieved_flops_per_s(H100, MFU) / 1e12, 1) == 445.2


def test_a_gpu_is_full_at_the_rate_that_saturates_it():
    rate = theory.saturating_requests_per_s(LLAMA, H100, MFU, 0, 2200)
    assert theory.prefill_load(LLAMA, H100, MFU, 0, 2200, rate) == pytest.approx(1)
    assert theory.prefill_load(LLAMA, H100, MFU, 0, 2200, 20) > 1 > theory.prefill_load(LLAMA, H100, MFU, 2000, 2200, 20)


def test_a_pool_of_26787_blocks_holds_52_requests_of_8192_tokens_and_the_null_block():
    usable = theory.usable_blocks(26_787)
    assert (usable, theory.pool_tokens(usable, 16)) == (26_786, 428_576)
    assert theory.concurrent_requests(usable, 8192, 16) == 52
    assert theory.concurrent_requests(10, 17, 16) == 5  # two blocks each
    assert theory.key_bytes(usable, 256) == usable * 36
    assert theory.key_bytes(usable, 128) == usable * 20


def test_a_gpus_pool_is_its_memory_less_the_weights():
    assert theory.pool_bytes(H100, 0.5, LLAMA) == 40e9 - 16.06e9
    assert theory.pool_bytes(H100, 0.5, LLAMA, 1) == 40e9 - 8.03e9
    assert theory.kv_bytes_per_token(LLAMA) == 2 * 32 * 8 * 128 * 2


def test_reading_the_weights_takes_their_bytes_at_the_memorys_speed():
    assert theory.weight_read_seconds(LLAMA, H100) == 16.06e9 / 3.35e12


def test_an_h100_saturates_below_twenty_cold_prompts_a_second_and_far_above_it_when_warm():
    cold = theory.saturating_requests_per_s(LLAMA, H100, MFU, 0, 2200)
    warm = theory.saturating_requests_per_s(LLAMA, H100, MFU, 2000, 2200)
    assert cold < 20 < warm
    assert cold * theory.prefill_flops(LLAMA, 0, 2200) == pytest.approx(989.4e12 * MFU)


@pytest.mark.parametrize("bits, chance", [(256, "4.3e-60"), (128, "1.5e-21")])
def test_accidental_collisions_of_a_billion_blocks_are_as_rare_as_worked_out(bits, chance):
    assert f"{theory.collision_probability(1e9, bits):.1e}" == chance


def test_the_birthday_bound_is_not_below_the_exact_chance():
    exact = 1 - math.prod(1 - taken / 2**16 for taken in range(50))
    assert exact <= theory.collision_probability(50, 16) < 1.1 * exact


@pytest.mark.parametrize("bits", [64, 128, 256])
def test_the_blocks_of_a_chance_are_the_bound_turned_round(bits):
    assert theory.collision_probability(theory.blocks_at_chance(1e-6, bits), bits) == pytest.approx(1e-6)
    assert theory.naming_seconds(1e9, 1e6) == 1000


def test_a_prediction_carries_the_formula_with_its_numbers():
    prediction = Prediction(*predict(theory.shared_prefix_hits, 10, 2000, prompt_tokens=2200, unit=16))
    assert prediction.value == 18_000
    assert prediction.law == "(10 − 1)·16·⌊min(2,000, 2,200 − 1)/16⌋ = 18,000"


LAWS = [
    (theory.full_blocks, (2200, 16)),
    (theory.unnamed_tail, (2200, 16)),
    (theory.newly_full_blocks, (2200, 200, 16)),
    (theory.reproduced_hashes, (89,)),
    (theory.names_in_common, (2200, 16, 1)),
    (theory.reuse, (2000, 2200, 16)),
    (theory.repeat, (2000, 16)),
    (theory.mean_rounding_loss, (16,)),
    (theory.drafter_hits, (2200, 16)),
    (theory.drafter_reuse, (2000, 2200, 16)),
    (theory.drafter_loss, (2000, 2200, 16)),
    (theory.moved_behind_gain, (0, 2000, 2201, 16)),
    (theory.offered_by_turn, (12, 5)),
    (theory.queries, (10, 2200)),
    (theory.shared_prefix_hits, (10, 2000, 2200, 16)),
    (theory.grouped_prefix_hits, (12, 4, 2000, 2200, 16)),
    (theory.grouped_prefix_blocks, (12, 4, 2000, 2200, 16)),
    (theory.resets_accepted, (1,)),
    (theory.differing_outputs, ("preemption",)),
    (theory.fewest_wrong_outputs, (144, 8)),
    (theory.guess_auc, (16, 256)),
    (theory.chance_auc_spread, (12, 12)),
    (theory.tokens_guessed_singly, (8, 16)),
    (theory.single_token_guesses, (4, 8, 8)),
    (theory.guesses_to_extend, (4, 16, 16)),
    (theory.fresh_salt_hits, (10, 2200, 16)),
    (theory.unique_prepend_hits, (3, 1, 2200, 16)),
    (theory.shared_extra_hits, (3, 1, 2000, 2200, 16)),
    (theory.unique_append_hits, (3, 1, 2000, 2200, 16)),
    (theory.concurrent_repeat_hits, (20, 1, 256, 16)),
    (theory.first_step_requests, (20, 256, 4096, 128)),
    (theory.turn_hits_tails_first, (2, 2001, 16, 200)),
    (theory.turn_hits_whole_prompts, (2, 2001, 16, 200)),
    (theory.hits_in_turn, (20, 2, 1184)),
    (theory.outputs_before_preemption, (2, 64, 16, 14)),
    (theory.preemptions_of_newer, (64, 64, 16, 14)),
    (theory.outputs_of_newer, (64, 64, 16, 14)),
    (theory.of_preempted, (0, 113)),
    (theory.unaccounted_tokens, (1,)),
    (theory.least_cold_over_warm, (LLAMA, 2000, 2200, 0.05, 1e15)),
    (theory.resumed_queries, (64, 49)),
    (theory.resumed_hits_tails_first, (64, 64, 16, 14)),
    (theory.resumed_hits_whole_leaf, (64, 64, 16, 14)),
    (theory.computed_twice, (113, 96)),
    (theory.failed_admissions, (16,)),
    (theory.hash_probes, (2000, 2200, 16)),
    (theory.tree_probes, (1, 2000, 2200, 16)),
    (theory.duplicate_blocks, (112, 16, 1)),
    (theory.prefill_flops, (LLAMA, 0, 2200)),
    (theory.prefill_seconds, (LLAMA, H100, MFU, 0, 2200)),
    (theory.cold_over_warm, (LLAMA, 2000, 2200)),
    (theory.simulated_ttft, (LLAMA, H100, MFU, 100e-6, 2000, 2200, 4096)),
    (theory.redundant_flops_per_s, (LLAMA, 2000, 20)),
    (theory.saturating_requests_per_s, (LLAMA, H100, MFU, 0, 2200)),
    (theory.pool_blocks, (52.32 * 2**30, LLAMA, 16)),
    (theory.collision_probability, (1e9, 256)),
    (theory.rounding_loss, (2000, 16)),
    (theory.last_token_loss, (2000, 2000, 16)),
    (theory.next_longer_match, (240, 784)),
    (theory.next_longer_repeat, (2000, 16)),
    (theory.next_turn_hits, (12, 5, 16)),
    (theory.drafter_shared_prefix_hits, (10, 2000, 2200, 16)),
    (theory.hit_rate, (18_000, 22_000)),
    (theory.redundant_share, (LLAMA, 2000, 2200)),
    (theory.saved_seconds, (LLAMA, H100, MFU, 2000)),
    (theory.achieved_flops_per_s, (H100, MFU)),
    (theory.prefill_load, (LLAMA, H100, MFU, 0, 2200, 20)),
    (theory.weight_read_seconds, (LLAMA, H100)),
    (theory.pool_bytes, (H100, 0.92, LLAMA)),
    (theory.kv_bytes_per_token, (LLAMA,)),
    (theory.usable_blocks, (26_787,)),
    (theory.pool_tokens, (26_786, 16)),
    (theory.concurrent_requests, (26_786, 8192, 16)),
    (theory.key_bytes, (26_786, 256)),
    (theory.blocks_at_chance, (1e-6, 128)),
    (theory.naming_seconds, (1e9, 1e6)),
]


@pytest.mark.parametrize("law, arguments", LAWS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_law_explains_itself_without_a_placeholder_left(law, arguments):
    value, text = predict(law, *arguments)
    assert value == law(*arguments)
    assert " = " in text and "{" not in text


@pytest.mark.parametrize(("same_step", "hits"), [(1, 19 * 240), (16, 4 * 240), (20, 0)])
def test_twins_of_one_step_pay_each_for_themselves(same_step, hits):
    assert theory.concurrent_repeat_hits(20, same_step, 256, 16) == hits


@pytest.mark.parametrize(
    ("budget", "seats", "admitted"), [(4096, 128, 16), (4097, 128, 17), (100, 128, 1), (4096, 8, 8), (100_000, 128, 20)]
)
def test_the_first_step_admits_what_budget_and_seats_allow(budget, seats, admitted):
    assert theory.first_step_requests(20, 256, budget, seats) == admitted


@given(lengths, st.integers(0, 500), units)
def test_named_and_unnamed_tokens_make_the_prompt_and_appends_add_up(length, appended, unit):
    assert theory.full_blocks(length, unit) * unit + theory.unnamed_tail(length, unit) == length
    assert 0 <= theory.unnamed_tail(length, unit) < unit
    new = theory.newly_full_blocks(length, appended, unit)
    assert theory.full_blocks(length, unit) + new == theory.full_blocks(length + appended, unit)
    assert theory.newly_full_blocks(2_200, 200, 16) == 13 and theory.unnamed_tail(2_200, 16) == 8


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 120), st.integers(0, 40), st.sampled_from([1, 3, 16]), st.floats(0, 0.999))
def test_of_two_families_in_turns_each_finds_what_survived_the_other(shared, tail, unit, share_of_second):
    from engine.config import EngineConfig
    from engine.llm_engine import LLMEngine
    from engine.model.simulated_runner import SimulatedRunner
    from engine.request import SamplingParams

    length = shared + tail
    needed = -(-length // unit)
    usable = needed + int(share_of_second * needed)
    assume(usable * unit > length)  # or the engine refuses the request: a token is generated
    prompts = [[family] * shared + [10 + turn] * tail for turn in range(3) for family in (1, 2)]
    for cache, survives in (("hash", theory.turn_hits_tails_first), ("radix", theory.turn_hits_whole_prompts)):
        if cache == "radix" and usable >= needed + length // unit > needed:
            continue  # room for both
        kept = min(theory.reuse(shared, length, unit), survives(2, length, unit, usable))
        engine = LLMEngine(EngineConfig(prefix_cache=cache, block_size=unit, page_size=unit, num_gpu_blocks=usable + 1), SimulatedRunner())
        found = [engine.generate(prompt, SamplingParams(max_tokens=1, ignore_eos=True))[0].num_cached_tokens for prompt in prompts]
        assert found == [0, 0, kept, kept, kept, kept]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=8), st.sampled_from([1, 2, 3]))
def test_a_tree_asks_as_often_as_its_law_says(prompts, unit):
    from labs.watch.probe_count import CountingTree

    tree, seen = CountingTree(unit), []
    for prompt in prompts:
        before = tree.num_probes
        found = tree.match(prompt[: len(prompt) - 1]).num_tokens
        assert found == theory.control_hits(prompt, [ids for ids, _ in seen], unit)
        nodes = theory.path_nodes(prompt, seen, unit)
        assert tree.num_probes - before == theory.tree_probes(nodes, found, len(prompt), unit)
        tree.insert(prompt, range(len(prompt)))
        seen.append((prompt, found))


def test_a_simulated_prompt_takes_its_arithmetic_its_reading_and_an_overhead_a_step():
    cold, warm = (theory.simulated_ttft(LLAMA, H100, MFU, 100e-6, cached, 2200, 4096) for cached in (0, 2000))
    assert round(cold * 1e3, 1) == 82.3 and round(warm * 1e3, 1) == 7.8 and round((cold - warm) * 1e3, 1) == 74.5
    few = theory.simulated_ttft(LLAMA, H100, MFU, 0.0, 2190, 2200, 4096)
    assert few > theory.weight_read_seconds(LLAMA, H100) > theory.prefill_seconds(LLAMA, H100, MFU, 2190, 2200)
    in_chunks = theory.simulated_ttft(LLAMA, H100, MFU, 100e-6, 0, 2200, 1000)
    assert in_chunks == pytest.approx(cold + 2 * 100e-6)


def step_cost(budget, seats=128):
    return theory.StepCost(LLAMA, H100, MFU, 100e-6, budget, seats)


def test_where_a_step_serves_one_request_requests_wait_for_each_other():
    alone = step_cost(500).seconds([(0, 500)])
    times = theory.batched_ttfts([0, 10, 10, 20], 0, 500, step_cost(500))
    assert times == pytest.approx([alone, alone, 2 * alone, alone])
    assert theory.batched_ttfts([0, 0], 0, 500, step_cost(4096, seats=1)) == pytest.approx([alone, 2 * alone])


def test_a_step_answers_all_that_it_ends_and_cuts_what_does_not_fit():
    both = step_cost(1000).seconds([(100, 500), (100, 500)])
    assert theory.batched_ttfts([0, 0], 100, 500, step_cost(1000)) == pytest.approx([both, both])
    first, rest = step_cost(600).seconds([(0, 500), (0, 100)]), step_cost(600).seconds([(100, 500)])
    assert theory.batched_ttfts([0, 0], 0, 500, step_cost(600)) == pytest.approx([first, first + rest])


def test_a_slow_start_and_fast_arithmetic_bring_the_ratio_of_times_nearer_to_one():
    by_flops = theory.cold_over_warm(LLAMA, 2000, 2200)
    assert theory.least_cold_over_warm(LLAMA, 2000, 2200, 0.0, 1e15) == pytest.approx(by_flops / 2)
    slower_start, faster = (theory.least_cold_over_warm(LLAMA, 2000, 2200, *one) for one in ((0.1, 1e15), (0.05, 2e15)))
    assert slower_start == pytest.approx(faster)
    assert 1 < slower_start < theory.least_cold_over_warm(LLAMA, 2000, 2200, 0.05, 1e15) < by_flops


def test_every_law_is_in_the_list_above():
    marked = {function for function in vars(theory).values() if hasattr(function, "formula")}
    assert marked == {law for law, _ in LAWS}


def test_a_function_that_is_not_a_law_cannot_predict():
    with pytest.raises(TypeError, match="common_prefix"):
        predict(theory.common_prefix, [1], [1])


@pytest.mark.parametrize(
    "call, field",
    [
        (lambda: theory.reuse(-1, 10, 16), "match_tokens"),
        (lambda: theory.reuse(1, 0, 16), "prompt_tokens"),
        (lambda: theory.repeat(10, 0), "unit"),
        (lambda: theory.shared_prefix_hits(0, 1, 2, 1), "num_requests"),
        (lambda: theory.offered_by_turn(5, 0), "output_tokens"),
        (lambda: theory.unique_prepend_hits(2, 0, 10, 1), "num_prepended"),
        (lambda: theory.turn_hits_tails_first(0, 10, 1, 20), "num_prompts"),
        (lambda: theory.turn_hits_whole_prompts(2, 10, 1, 9), "prompt_tokens"),
        (lambda: theory.outputs_before_preemption(2, 65, 16, 8), "prompt_tokens"),
        (lambda: theory.cold_over_warm(LLAMA, 10, 10), "cached_tokens"),
        (lambda: theory.simulated_ttft(LLAMA, H100, MFU, 0.0, 10, 10, 100), "cached_tokens"),
        (lambda: theory.duplicate_blocks(16, 16, 2), "keeps_copies"),
        (lambda: theory.rounding_loss(-1, 16), "match_tokens"),
        (lambda: theory.next_longer_repeat(0, 16), "prompt_tokens"),
        (lambda: theory.drafter_shared_prefix_hits(0, 1, 2, 1), "num_requests"),
        (lambda: theory.hit_rate(0, 0), "num_queries"),
        (lambda: theory.pool_bytes(H100, 0, LLAMA), "utilization"),
        (lambda: theory.usable_blocks(0), "num_blocks"),
        (lambda: theory.concurrent_requests(1, 0, 16), "request_tokens"),
        (lambda: theory.blocks_at_chance(0, 16), "chance"),
        (lambda: theory.naming_seconds(1, 0), "blocks_per_s"),
    ],
)
def test_a_size_that_cannot_be_is_refused_by_name(call, field):
    with pytest.raises(ValueError, match=f"^{field} is "):
        call()
