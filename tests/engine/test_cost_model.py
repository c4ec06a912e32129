"""The cost model against sums written out and against the worked numbers of the laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cost_model import (
    GPUS,
    MODELS,
    achieved_flops_per_s,
    gpu_by_name,
    kv_bytes_per_token,
    model_shape,
    pool_blocks,
    prefill_flops,
    prefill_seconds,
    step_seconds,
    weight_bytes,
)
from engine.errors import ConfigError

LLAMA = model_shape("llama-3-8b")
H100 = gpu_by_name("H100 SXM")
MFU = 0.45


@given(shape=st.sampled_from(MODELS), start=st.integers(0, 300), num_tokens=st.integers(0, 300))
def test_the_closed_form_equals_the_sum_over_positions(shape, start, num_tokens):
    end = start + num_tokens
    per_position = 4 * shape.num_layers * shape.num_heads * shape.head_dim
    by_hand = sum(2 * shape.num_parameters + per_position * s for s in range(start, end))
    assert prefill_flops(shape, start, end) == by_hand


@given(cuts=st.lists(st.integers(0, 4000), min_size=2, max_size=6).map(sorted))
def test_chunks_of_a_prompt_cost_together_what_it_costs_at_once(cuts):
    chunks = sum(prefill_flops(LLAMA, start, end) for start, end in zip(cuts, cuts[1:]))
    assert chunks == prefill_flops(LLAMA, cuts[0], cuts[-1])


def test_a_prompt_of_2200_tokens_costs_36_600_teraflop_and_its_last_200_cost_3_432():
    cold, warm = prefill_flops(LLAMA, 0, 2200), prefill_flops(LLAMA, 2000, 2200)
    assert round(cold / 1e12, 3) == 36.600
    assert round(warm / 1e12, 3) == 3.432
    assert round(cold / warm, 3) == 10.664
    assert round(1 - warm / cold, 4) == 0.9062


def test_a_cached_prefix_of_2000_tokens_saves_74_5_ms_on_an_h100():
    cold_s, warm_s = prefill_seconds(LLAMA, H100, MFU, 0, 2200), prefill_seconds(LLAMA, H100, MFU, 2000, 2200)
    assert round(cold_s * 1e3, 1) == 82.2
    assert round(warm_s * 1e3, 1) == 7.7
    assert round((cold_s - warm_s) * 1e3, 1) == 74.5


def test_twenty_redundant_prefills_a_second_ask_more_than_an_h100_delivers():
    assert round(20 * prefill_flops(LLAMA, 0, 2000) / 1e12, 1) == 663.4
    assert round(achieved_flops_per_s(H100, MFU) / 1e12, 1) == 445.2


def test_a_pool_of_52_32_gib_holds_26787_blocks_of_16_tokens():
    assert kv_bytes_per_token(LLAMA) * 16 == 2 * 2**20
    assert pool_blocks(52.32 * 2**30, LLAMA, 16) == 26_787


def test_a_pool_counts_whole_blocks_only():
    block_bytes = kv_bytes_per_token(LLAMA) * 16
    assert [pool_blocks(block_bytes * 3 + extra, LLAMA, 16) for extra in (-1, 0, 1)] == [2, 3, 3]


def test_a_prefill_takes_its_arithmetic_and_a_decode_step_takes_its_reading():
    assert step_seconds(LLAMA, H100, MFU, [(0, 2200)]) == prefill_seconds(LLAMA, H100, MFU, 0, 2200)
    assert step_seconds(LLAMA, H100, MFU, [(2000, 2200)]) == prefill_seconds(LLAMA, H100, MFU, 2000, 2200)
    read_bytes = weight_bytes(LLAMA) + 2201 * kv_bytes_per_token(LLAMA)
    assert step_seconds(LLAMA, H100, MFU, [(2200, 2201)]) == read_bytes / 3.35e12


def test_a_batch_reads_the_weights_once_and_the_kv_of_each_request():
    one = step_seconds(LLAMA, H100, MFU, [(1000, 1001)])
    eight = step_seconds(LLAMA, H100, MFU, [(1000, 1001)] * 8)
    assert eight - one == pytest.approx(7 * 1001 * kv_bytes_per_token(LLAMA) / 3.35e12)


def test_a_step_without_tokens_takes_no_time():
    assert step_seconds(LLAMA, H100, MFU, []) == 0.0


@pytest.mark.parametrize("entry", MODELS + GPUS, ids=lambda entry: entry.name)
def test_every_entry_names_its_source_and_is_found_in_any_case(entry):
    find = model_shape if entry in MODELS else gpu_by_name
    assert find(entry.name.upper()) is entry
    assert find(entry.name.lower()) is entry
    assert entry.source


@pytest.mark.parametrize("find, accepted", [(model_shape, "llama-3-8b"), (gpu_by_name, "H100 SXM")])
def test_an_unknown_name_is_refused_with_the_accepted_ones(find, accepted):
    with pytest.raises(ConfigError, match=f"'abacus'; accepted: .*{accepted}"):
        find("abacus")


@pytest.mark.parametrize("mfu", [0, -0.1, 1.01])
def test_an_mfu_outside_its_range_is_refused(mfu):
    with pytest.raises(ConfigError, match="mfu"):
        prefill_seconds(LLAMA, H100, mfu, 0, 10)


@pytest.mark.parametrize("start, end", [(-1, 5), (6, 5)])
def test_a_range_that_runs_backwards_or_starts_before_the_prompt_is_refused(start, end):
    with pytest.raises(ConfigError, match="start"):
        prefill_flops(LLAMA, start, end)
