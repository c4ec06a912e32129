"""SchedulerOutput -> flat tensors: every scheduled token of every request in one row, no padding.

    scheduled          r0: 3 tokens      r1: 1 token   r2: 2 tokens
    input_ids     [T]  │ a  b  c       │ d           │ e  f        │        T = 6
    positions     [T]  │ 0  1  2       │ 41          │ 7  8        │        place in its own request
    write_slots   [T]  │ 16 17 18      │ 89          │ 55 56       │        where its K/V go
    sample_rows   [n]          2         3                            r2 still has tokens to compute
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.model.kv_tensors import slots_of
from engine.model.pinned_inputs import InputCopier
from engine.scheduler import SchedulerOutput


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """One request's rows of the step, half-open, and where its whole context lies.

    A row at position p reads the context's slots [0, p]: its own token and everything before it.
    """

    first_row: int
    num_rows: int
    start: int  # position of the first row; tokens before it have K/V already
    context_slots: np.ndarray  # [start + num_rows] int64, in token order


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows whose logits give prompt log-probabilities: row `first_row + i` those of position `first_position + i`."""

    request_id: str
    num_top: int
    first_row: int
    first_position: int  # of the token predicted, one after the row's own
    token_ids: list[int]  # the prompt's tokens at those positions


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One step, ready for the model."""

    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    write_slots: np.ndarray  # [T] int64
    spans: list[TokenSpan]  # aligned with SchedulerOutput.scheduled
    sampling: list[int]  # indices into SchedulerOutput.scheduled of the requests that sample
    sample_rows: Tensor  # [len(sampling)] int64
    prompt_rows: list[PromptRows]


def build_model_input(output: SchedulerOutput, unit_size: int, vocab_size: int, copier: InputCopier) -> ModelInput:
    """The tensors of one step with at least one scheduled request.

    unit_size  tokens of one block
    copier     brings arrays to the model's device
    """
    token_ids: list[int] = []
    positions: list[np.ndarray] = []
    write_slots: list[np.ndarray] = []
    spans: list[TokenSpan] = []
    sampling: list[int] = []
    sample_rows: list[int] = []
    prompt_rows: list[PromptRows] = []
    for index, item in enumerate(output.scheduled):
        request, start, end, first_row = item.request, item.start, item.end, len(token_ids)
        assert 0 <= start < end <= request.num_tokens
        slots = slots_of(item.block_table, unit_size, end)
        token_ids += request.all_token_ids[start:end]
        positions.append(np.arange(start, end, dtype=np.int64))
        write_slots.append(slots[start:])
        spans.append(TokenSpan(first_row, item.num_tokens, start, slots))
        if item.samples:
            sampling.append(index)
            sample_rows.append(first_row + item.num_tokens - 1)
        num_top = request.sampling_params.prompt_logprobs
        # The last prompt token predicts an output, not a prompt token.
        stop = min(end, request.num_prompt_tokens - 1)
        if num_top is not None and start < stop:
            prompt_rows.append(
                PromptRows(request.request_id, num_top, first_row, start + 1, request.all_token_ids[start + 1 : stop + 1])
            )
    ids = np.array(token_ids, dtype=np.int64)
    assert 0 <= ids.min() and ids.max() < vocab_size, "a token id outside the vocabulary reached the model"
    return ModelInput(
        input_ids=copier.copy(ids),
        positions=copier.copy(np.concatenate(positions)),
        write_slots=np.concatenate(write_slots),
        spans=spans,
        sampling=sampling,
        sample_rows=copier.copy(np.array(sample_rows, dtype=np.int64)),
        prompt_rows=prompt_rows,
    )
