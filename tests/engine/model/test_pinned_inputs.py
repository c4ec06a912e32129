"""Arrays reach the device unchanged, and no buffer is written before its copies have been made."""

import numpy as np
import pytest
import torch

from engine.model.pinned_inputs import InputCopier

CPU = torch.device("cpu")


class DelayedEvent:
    def __init__(self, copier):
        self.copier, self.copies = copier, list(copier.pending)
        copier.pending.clear()

    def synchronize(self):
        self.copier.waits += 1
        for out, staged in self.copies:
            out.copy_(staged)


class DelayedOut(torch.Tensor):
    """A tensor whose asynchronous copies are made when somebody waits: the worst a GPU may do."""

    copier = None

    def copy_(self, source, non_blocking=False):
        assert non_blocking
        self.copier.pending.append((self.as_subclass(torch.Tensor), source))
        return self


class StagedCopier(InputCopier):
    """The staging of a GPU's copies, with memory and events of a CPU."""

    def __init__(self, buffer_bytes):
        super().__init__(CPU, buffer_bytes)
        self._is_staged = True
        self.pending, self.waits, self.num_buffers = [], 0, 0

    def _new_buffer(self, num_bytes):
        self.num_buffers += 1
        return torch.empty(num_bytes, dtype=torch.uint8)

    def _record_event(self):
        return DelayedEvent(self)

    def copy_late(self, array):
        out = torch.zeros(array.shape, dtype=torch.from_numpy(array).dtype).as_subclass(DelayedOut)
        out.copier = self
        self.copy(array, out=out)
        return out.as_subclass(torch.Tensor)


def test_on_a_cpu_nothing_is_copied():
    array = np.arange(5)
    assert InputCopier(CPU).copy(array).data_ptr() == array.ctypes.data
    out = torch.zeros(5, dtype=torch.int64)
    assert InputCopier(CPU).copy(array, out=out) is out and out.tolist() == array.tolist()


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32, bool])
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 4)])
def test_staged_arrays_keep_values_shape_and_dtype(dtype, shape):
    array = (np.arange(np.prod(shape)) % 2).reshape(shape).astype(dtype)
    copied = StagedCopier(256).copy(array)
    assert copied.dtype == torch.from_numpy(array).dtype and np.array_equal(copied.numpy(), array)


def test_a_view_in_another_order_is_copied_as_it_reads():
    array = np.arange(12).reshape(3, 4).T
    assert StagedCopier(256).copy(array).tolist() == array.tolist()


def test_buffers_take_turns_and_wait_for_their_copies():
    copier = StagedCopier(64)  # four arrays of two int64 each
    outputs = [copier.copy_late(np.array([index, -index])) for index in range(23)]
    # Buffers are full behind copies 4, 8, 12, 16, 20; from the second change on, the other one has been used.
    assert copier.num_buffers == 2 and copier.waits == 4
    copier._record_event().synchronize()
    copier._other_copied.synchronize()
    assert [output.tolist() for output in outputs] == [[index, -index] for index in range(23)]


def test_an_array_larger_than_a_buffer_gets_memory_of_its_own():
    copier = StagedCopier(64)
    array = np.arange(100)
    assert copier.copy(array).tolist() == array.tolist()
    assert copier.copy(np.array([1])).tolist() == [1] and copier.num_buffers == 2
