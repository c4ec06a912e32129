"""SchedulerOutput -> flat tensors: every scheduled token of every request in one row, no padding.

    scheduled          r0: 3 tokens      r1: 1 token   r2: 2 tokens
    input_ids     [T]  │ a  b  c       │ d           │ e  f        │        T = 6
    positions     [T]  │ 0  1  2       │ 41          │ 7  8        │        place in its own request
    write_slots   [T]  │ 16 17 18      │ 89          │ 55 56       │        where its K/V go
    sample_rows   [n]          2         3                            r2 still has tokens to compute
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np
from torch import Tensor

from engine.kvcache.cache_identity import LoRA
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
class AdapterRows:
    """Rows [first_row, end_row) that an adapter changes."""

    first_row: int
    end_row: int
    lora: LoRA


@dataclass(frozen=True, slots=True)
class EmbeddingRows:
    """Rows from `first_row` on whose embedding was given, in place of their token's."""

    first_row: int
    values: Tensor  # [n, hidden_size] float32


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
    adapter_rows: Sequence[AdapterRows] = ()
    embedding_rows: Sequence[EmbeddingRows] = ()

    @property
    def is_changed(self) -> bool:
        """Whether some rows have more than their token."""
        return bool(self.adapter_rows or self.embedding_rows)


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
    adapter_rows: list[AdapterRows] = []
    embedding_rows: list[EmbeddingRows] = []
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
        identity = request.identity
        if identity.lora is not None:
            adapter_rows.append(AdapterRows(first_row, len(token_ids), identity.lora))
        if identity.prompt_embeds is not None and start < request.num_prompt_tokens:
            embedding_rows.append(EmbeddingRows(first_row, _embeddings(identity.prompt_embeds[start:end], copier)))
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
        adapter_rows=adapter_rows,
        embedding_rows=embedding_rows,
    )


def _embeddings(given: Sequence[bytes], copier: InputCopier) -> Tensor:
    """Raw float32 bytes of each position -> [n, hidden_size]."""
    # A bytearray: torch wants memory that may be written.
    return copier.copy(np.frombuffer(bytearray(b"".join(given)), dtype="<f4").reshape(len(given), -1))
