"""ModelRunner: one step of the schedule through the real model.

    SchedulerOutput ─model_input─▶ flat tensors ─model body─▶ hidden [T, hidden_size]
                                                                 │ only the rows that sample
                                         sampled ids ◀─sampler── logits [n, vocab_size]
"""

from __future__ import annotations

import time
from typing import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import RequestRefused
from engine.model.attention import SdpaAttention
from engine.model.attention_backend import AttentionChoice, choose
from engine.model.decode_graphs import DecodeGraphs
from engine.model.decoder import Decoder
from engine.model.kv_tensors import KVTensors
from engine.model.loader import LoadedModel
from engine.model.lora_adapter import LoraAdapter, seed_of, seeded_adapter
from engine.model.model_input import ModelInput, PromptRows, build_model_input
from engine.model.pinned_inputs import InputCopier
from engine.model.row_changes import RowChanges
from engine.model.sampler import Sampler, SamplingRow, token_logprobs
from engine.request import Request
from engine.runner import RunnerOutput, TokenLogprobs
from engine.scheduler import SchedulerOutput

# Adapters kept for the next step that uses them.
MAX_ADAPTERS = 16
# What weights must have in common to be served one after the other.
_SHAPE_FIELDS = ("num_layers", "num_heads", "num_kv_heads", "head_dim", "hidden_size", "vocab_size", "dtype", "device")


class ModelRunner:
    """The Runner that computes; see engine/runner.py for the contract of each method."""

    is_simulated = False

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        self.vocab_size: int = loaded.vocab_size
        self.max_model_len: int = loaded.max_model_len
        self.eos_token_ids: frozenset[int] = loaded.eos_token_ids
        self.loaded = loaded
        self._body, self._head = loaded.body, loaded.head
        self._sampler = Sampler(config.seed)
        self._kv: KVTensors | None = None
        self._copier = InputCopier(loaded.device)
        self._attention: AttentionChoice = choose(
            loaded.device, loaded.dtype, loaded.head_dim, loaded.num_heads, loaded.num_kv_heads, config.attention_backend
        )
        self._graphs: DecodeGraphs | None = None
        self._adapters: dict[int, LoraAdapter] = {}  # by seed
        self._max_num_seqs = config.max_num_seqs
        self._longest = min(config.max_model_len or loaded.max_model_len, loaded.max_model_len)

    def bytes_per_token(self) -> int:
        model = self.loaded
        return 2 * model.num_layers * model.num_kv_heads * model.head_dim * model.dtype.itemsize

    def allocate_kv(self, num_blocks: int, unit_size: int) -> None:
        model = self.loaded
        assert self._kv is None, "K/V storage is allocated once"
        self._kv = KVTensors(
            model.num_layers, num_blocks, unit_size, model.num_kv_heads, model.head_dim, model.dtype, model.device
        )
        self._record_graphs()

    def update_weights(self, loaded: LoadedModel) -> None:
        """Serve other weights of the same model from the next step on; what the K/V storage holds stays.

        Cached K/V are then those of the old weights, and are served as before until the prefix cache is reset.
        Raises ValueError for a model of another shape, dtype or device.
        """
        for name in _SHAPE_FIELDS:
            mine, other = getattr(self.loaded, name), getattr(loaded, name)
            if mine != other:
                raise ValueError(f"{name} is {other}; accepted: {mine}, as of the weights served before")
        self.loaded = loaded
        self._body, self._head = loaded.body, loaded.head
        if self._kv is not None:
            self._record_graphs()

    def _record_graphs(self) -> None:
        """Graphs of this body over this storage, where there can be any."""
        model, graph_class = self.loaded, self._attention.graph_class
        self._graphs = None
        # A graph needs a body that reads nothing back from the GPU: our own does not, transformers' may.
        if graph_class is not None and isinstance(self._body, Decoder):
            kv, copier = self._kv, self._copier
            self._graphs = DecodeGraphs(
                self._body, kv,
                lambda size, max_blocks: graph_class(kv, size, max_blocks, model.num_heads, model.num_kv_heads, copier),
                self._max_num_seqs, self._longest,
            )  # fmt: skip
            self._graphs.record_all()

    def check_identity(self, request: Request) -> None:
        """Raises RequestRefused for an adapter, images or embeddings that this model cannot be given."""
        identity = request.identity
        if identity.mm_items:
            raise RequestRefused("images, which the model does not read; accepted: cache_salt, a LoRA adapter, prompt embeddings")
        if identity.lora is not None:
            seed_of(identity.lora.path)
            if self._body.qkv_shape is None:
                raise RequestRefused(
                    "a LoRA adapter, for a model whose layers have no q_proj, k_proj and v_proj of one size; accepted: no adapter"
                )
        if identity.prompt_embeds is not None:
            self._check_embeddings(identity.prompt_embeds, request.num_prompt_tokens)

    def token_embeddings(self, token_ids: Sequence[int]) -> list[bytes]:
        """The model's own embeddings of tokens, in the form of `prompt_embeds`: given for a prompt, they say what it says."""
        rows = self.loaded.model.get_input_embeddings()(torch.tensor(token_ids, device=self.loaded.device))
        return [row.tobytes() for row in rows.float().cpu().numpy().astype("<f4")]

    def _check_embeddings(self, given: Sequence[bytes], num_prompt_tokens: int) -> None:
        size = self.loaded.hidden_size
        accepted = f"one for each of the prompt's {num_prompt_tokens} positions, {size} finite float32 numbers ({4 * size} bytes)"
        if len(given) != num_prompt_tokens or any(len(one) != 4 * size for one in given):
            sizes = ", ".join(map(str, sorted({len(one) for one in given}))) or "no"
            raise RequestRefused(f"{len(given)} prompt embeddings of {sizes} bytes; accepted: {accepted}")
        if not np.isfinite(np.frombuffer(b"".join(given), dtype="<f4")).all():
            raise RequestRefused(f"prompt embeddings that are not finite; accepted: {accepted}")

    def now(self) -> float:
        return time.perf_counter()

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        num_scheduled = len(output.scheduled)
        result = RunnerOutput([None] * num_scheduled, [None] * num_scheduled)
        if not num_scheduled:
            return result
        assert self._kv is not None, "allocate_kv comes before the first step"
        step = build_model_input(output, self._kv.unit_size, self.vocab_size, self._copier)
        hidden = self._forward(step)
        if step.sampling:
            self._sample(output, step, hidden, result)
        for rows in step.prompt_rows:
            result.prompt_logprobs[rows.request_id] = self._prompt_logprobs(rows, hidden)
        return result

    def _forward(self, step: ModelInput) -> Tensor:
        """Hidden states after the last norm: of the rows that sample, or of all [T, hidden_size] for prompt logprobs."""
        replayed = None if self._graphs is None else self._graphs.run(step)
        if replayed is not None:
            return replayed
        model, make = self.loaded, self._attention.step_class
        # Our CPU kernels are SdpaAttention's alone.
        kernels = {"kernels": model.step_kernels} if make is SdpaAttention else {}
        attention = make(self._kv, step.write_slots, step.spans, model.num_heads, model.num_kv_heads, **kernels)
        rows = None if step.prompt_rows else step.sample_rows
        return self._body(step.input_ids, step.positions, attention, rows, self._changes(step) if step.is_changed else None)

    def _changes(self, step: ModelInput) -> RowChanges:
        return RowChanges(
            [(rows.first_row, rows.values) for rows in step.embedding_rows],
            [(rows.first_row, rows.end_row, self._adapter(seed_of(rows.lora.path))) for rows in step.adapter_rows],
        )

    def _adapter(self, seed: int) -> LoraAdapter:
        adapter = self._adapters.pop(seed, None)
        if adapter is None:
            shape = self._body.qkv_shape
            assert shape is not None, "a request with an adapter was checked before it came here"
            adapter = seeded_adapter(seed, shape, self.loaded.dtype, self.loaded.device)
        self._adapters[seed] = adapter  # the one used last comes last
        if len(self._adapters) > MAX_ADAPTERS:
            self._adapters.pop(next(iter(self._adapters)))
        return adapter

    def _sample(self, output: SchedulerOutput, step: ModelInput, hidden: Tensor, result: RunnerOutput) -> None:
        requests = [output.scheduled[index].request for index in step.sampling]
        logits = self._head(hidden.index_select(0, step.sample_rows) if step.prompt_rows else hidden)
        sampled = self._sampler.sample(
            logits, [SamplingRow(request.sampling_params, request.num_output_tokens) for request in requests]
        )
        for index, token_id in zip(step.sampling, sampled):
            result.sampled_token_ids[index] = token_id
        wanted = [row for row, request in enumerate(requests) if request.sampling_params.logprobs is not None]
        if wanted:
            reports = token_logprobs(
                logits[wanted],
                [sampled[row] for row in wanted],
                [requests[row].sampling_params.logprobs or 0 for row in wanted],
            )
            for row, report in zip(wanted, reports):
                result.logprobs[step.sampling[row]] = report

    def _prompt_logprobs(self, rows: PromptRows, hidden: Tensor) -> dict[int, TokenLogprobs]:
        """{position: log-probabilities of the prompt's token there}."""
        reports: list[TokenLogprobs] = []
        last_row = rows.first_row + len(rows.token_ids)
        for first, logits in self._head.in_chunks(hidden[rows.first_row : last_row]):
            token_ids = rows.token_ids[first : first + logits.shape[0]]
            reports += token_logprobs(logits, token_ids, [rows.num_top] * len(token_ids))
        return {rows.first_position + index: report for index, report in enumerate(reports)}
