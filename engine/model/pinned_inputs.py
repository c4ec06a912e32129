"""A step's index arrays -> the device, without waiting for the copies.

A GPU copies from host memory by itself only if that memory is pinned; else each small array costs a wait. Pinning is
slow, so it is done once, for two buffers that take turns:

    buffer A   │ ids │ positions │ slots │ … full: an event is recorded behind its last copy
    buffer B   │ ids │ …         used from now on; before A is written again, its event must have passed
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

BUFFER_BYTES = 4 * 1024**2
# Where an array may begin; no dtype is wider.
ALIGNMENT_BYTES = 16


class InputCopier:
    """Copies numpy arrays to one device; on a CPU the tensor shares the array's memory."""

    def __init__(self, device: torch.device, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._device = device
        self._buffer_bytes = buffer_bytes
        self._is_staged = device.type == "cuda"
        self._current: Tensor | None = None  # [bytes] uint8, pinned
        self._other: Tensor | None = None
        self._other_copied: Any = None  # an event, passed when all copies from `_other` have been made
        self._num_used = 0  # bytes of the current buffer

    def copy(self, array: np.ndarray, out: Tensor | None = None) -> Tensor:
        """The array as a tensor on the device; the array may be changed once this has returned (not on a CPU).

        array  any shape, of a dtype that torch has
        out    where to put it, same shape and dtype; None: a new tensor
        """
        source = torch.from_numpy(np.ascontiguousarray(array))
        if not self._is_staged:
            return source if out is None else out.copy_(source)
        staged = self._take(source.nbytes).view(source.dtype).view(source.shape)
        staged.copy_(source)
        if out is None:
            out = torch.empty(source.shape, dtype=source.dtype, device=self._device)
        return out.copy_(staged, non_blocking=True)

    def _take(self, num_bytes: int) -> Tensor:
        """The next unused bytes of the current buffer, which changes when it is full."""
        if num_bytes > self._buffer_bytes:
            # Too large for any turn: torch keeps such memory until its copy has been made.
            return self._new_buffer(num_bytes)
        if self._current is None:
            self._current = self._new_buffer(self._buffer_bytes)
        elif self._num_used + num_bytes > self._buffer_bytes:
            self._change_buffers()
        taken = self._current[self._num_used : self._num_used + num_bytes]
        self._num_used += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return taken

    def _change_buffers(self) -> None:
        copied = self._record_event()
        if self._other_copied is not None:
            self._other_copied.synchronize()
        following = self._new_buffer(self._buffer_bytes) if self._other is None else self._other
        self._current, self._other, self._other_copied = following, self._current, copied
        self._num_used = 0

    def _new_buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def _record_event(self) -> Any:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event
