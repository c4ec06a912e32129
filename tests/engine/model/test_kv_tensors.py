import numpy as np
import pytest
import torch

from engine.model.kv_tensors import KVTensors, as_slots, slots_of

CPU = torch.device("cpu")


@pytest.fixture
def kv():
    return KVTensors(2, 8, 4, 3, 5, torch.float32, CPU)


def test_storage_has_the_documented_shape_and_starts_as_zeros(kv):
    assert kv.keys.shape == kv.values.shape == (2, 32, 3, 5)
    assert not kv.keys.any() and not kv.values.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_storage_keeps_the_dtype(dtype):
    kv = KVTensors(1, 2, 4, 1, 8, dtype, CPU)
    row = torch.arange(8).to(dtype).view(1, 1, 8)
    kv.write(0, slice(5, 6), row, 2 * row)
    assert torch.equal(kv.keys[0, 5], row[0]) and torch.equal(kv.values[0, 5], 2 * row[0])


@pytest.mark.parametrize("slots", [slice(6, 10), torch.tensor([30, 4, 17, 5])])
def test_what_was_written_is_read_in_token_order_and_nothing_else_changes(kv, slots):
    keys, values = torch.randn(4, 3, 5), torch.randn(4, 3, 5)
    kv.write(1, slots, keys, values)
    read_keys, read_values = kv.read(1, slots)
    assert torch.equal(read_keys, keys) and torch.equal(read_values, values)
    assert not kv.keys[0].any()
    kv.keys[1, slots] = 0
    assert not kv.keys[1].any()


def test_a_run_of_slots_is_read_in_place_and_scattered_slots_are_copied(kv):
    kept = kv.keys.untyped_storage().data_ptr()
    assert kv.read(0, slice(4, 9))[0].untyped_storage().data_ptr() == kept
    assert kv.read(0, torch.tensor([4, 9]))[0].untyped_storage().data_ptr() != kept


def test_slots_follow_the_block_table():
    assert slots_of([3, 1], 4, 6).tolist() == [12, 13, 14, 15, 4, 5]
    assert slots_of([9, 2, 5], 1, 2).tolist() == [9, 2]


def test_a_block_table_that_is_too_short_is_a_mistake():
    with pytest.raises(AssertionError):
        slots_of([3, 1], 4, 9)


@pytest.mark.parametrize(
    "slots, run", [([7], slice(7, 8)), ([7, 8, 9], slice(7, 10)), ([7, 9, 8, 10], None), ([9, 8, 7], None), ([7, 7, 9], None)]
)
def test_only_an_ascending_run_becomes_a_slice(slots, run):
    found = as_slots(np.array(slots), CPU)
    assert found == run if run else found.tolist() == slots
