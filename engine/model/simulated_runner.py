"""SimulatedRunner: the Runner with no tensors. Tokens follow a rule, time follows the cost model.

The scheduler, the caches and the accounting are the real ones; only the forward pass is replaced. So a lab that
counts tokens runs in milliseconds, for a model and a GPU that are not there.

The rule. A digest of all of a request's tokens before a position stands for the model's hidden state there, and
gives a probability distribution over the next token:

    best = digest mod vocab_size;   rank of a token = (token − best) mod vocab_size;   p(rank) = (1 − r) · r^rank

with r between 0.05 and 0.5, also from the digest. The best token is always taken, whatever the temperature.
Equal tokens give equal outputs: batch neighbours, cache hits, chunks, preemption, salts and the request's id do not
enter, as they should not in a real model. What changes a real model's K/V does enter: the name and the path of an
adapter, and images and prompt embeddings, whose content stands in the place of their tokens. What it cannot show is
the damage wrong K/V would do: none are kept.
"""

from __future__ import annotations

import hashlib
import math
import struct
from typing import NamedTuple, Sequence

from engine.cost_model import gpu_by_name, kv_bytes_per_token, model_shape, step_seconds
from engine.errors import ConfigError
from engine.request import Request
from engine.runner import RunnerOutput, TokenLogprob, TokenLogprobs
from engine.scheduler import ScheduledRequest, SchedulerOutput

# Scheduling, launching and sampling, the same for every step: of the order that servers with captured graphs reach.
STEP_OVERHEAD_S = 100e-6


class SimulatedRunner:
    """Computes nothing, on a virtual clock that starts at 0.0 and moves when a step has tokens, or in `wait_until`.

    Raises ConfigError for a model or a GPU that is not in engine/cost_model.py, or an MFU outside (0, 1].
    """

    is_simulated = True

    def __init__(
        self, model: str = "llama-3-8b", gpu: str = "H100 SXM", mfu: float = 0.45, dtype_bytes: int = 2
    ) -> None:
        if not 0 < mfu <= 1:
            raise ConfigError("mfu", mfu, "a number above 0, up to 1")
        if dtype_bytes not in (1, 2, 4):
            raise ConfigError("dtype_bytes", dtype_bytes, "1, 2 or 4")
        self.shape = model_shape(model)
        self.gpu = gpu_by_name(gpu)
        self.mfu = mfu
        self.dtype_bytes = dtype_bytes
        self.vocab_size = self.shape.vocab_size
        self.max_model_len = self.shape.max_model_len
        self.eos_token_ids: frozenset[int] = frozenset()  # no text, so nothing ends one
        self.num_blocks = 0
        self.unit_size = 0
        self._clock_s = 0.0

    def bytes_per_token(self) -> int:
        """K/V bytes of one token over all layers, had they been kept."""
        return kv_bytes_per_token(self.shape, self.dtype_bytes)

    def allocate_kv(self, num_blocks: int, unit_size: int) -> None:
        """Note the pool's size; there is no storage to provide."""
        self.num_blocks = num_blocks
        self.unit_size = unit_size

    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        """One step: a token for every request whose tokens are all computed, and the clock moved on."""
        result = RunnerOutput(sampled_token_ids=[], logprobs=[])
        for item in output.scheduled:
            self._check_block_table(item)
            token_id, logprobs = self._sample(item.request) if item.samples else (None, None)
            result.sampled_token_ids.append(token_id)
            result.logprobs.append(logprobs)
            if item.request.sampling_params.prompt_logprobs is not None:
                result.prompt_logprobs[item.request.request_id] = self._prompt_logprobs(item)
        if output.scheduled:
            ranges = [(item.start, item.end) for item in output.scheduled]
            self._clock_s += STEP_OVERHEAD_S + step_seconds(self.shape, self.gpu, self.mfu, ranges, self.dtype_bytes)
        return result

    def now(self) -> float:
        """Seconds on the simulated clock."""
        return self._clock_s

    def wait_until(self, moment_s: float) -> None:
        """Let time pass with nothing to compute; a moment that is past changes nothing."""
        self._clock_s = max(self._clock_s, moment_s)

    def token_embeddings(self, token_ids: Sequence[int]) -> list[bytes]:
        """Bytes that differ where tokens do; there are no embeddings."""
        return [struct.pack("<I", token_id) for token_id in token_ids]

    def _sample(self, request: Request) -> tuple[int, TokenLogprobs | None]:
        distribution = _distribution(_Prefix(request).digest(len(request.all_token_ids)), self.vocab_size)
        num_top = request.sampling_params.logprobs
        if num_top is None:
            return distribution.best, None
        return distribution.best, distribution.logprobs_of(distribution.best, num_top)

    def _prompt_logprobs(self, item: ScheduledRequest) -> dict[int, TokenLogprobs]:
        """Log-probabilities of the prompt tokens that follow the step's tokens.

        Computing position s tells how likely the token at s + 1 was, so a step over [start, end) covers the
        prompt positions [start + 1, end + 1), up to the prompt's last.
        """
        token_ids = item.request.all_token_ids
        num_top = item.request.sampling_params.prompt_logprobs
        assert num_top is not None
        found = {}
        prefix = _Prefix(item.request)
        digest = prefix.digest(item.start)
        for position in range(item.start + 1, min(item.end + 1, item.request.num_prompt_tokens)):
            # One digest grows along the prompt: starting afresh at each position would cost the square of its length.
            digest.update(prefix.bytes_of(position - 1, position))
            found[position] = _distribution(digest, self.vocab_size).logprobs_of(token_ids[position], num_top)
        return found

    def _check_block_table(self, item: ScheduledRequest) -> None:
        if self.unit_size:
            assert len(item.block_table) * self.unit_size >= item.end, "the block table must cover every computed token"


class _Distribution(NamedTuple):
    """A geometric distribution over the vocabulary, falling from the best token on."""

    best: int
    ratio: float  # probability of a rank over that of the rank before it
    vocab_size: int

    def logprobs_of(self, token_id: int, num_top: int) -> TokenLogprobs:
        """A token's log-probability and the `num_top` most likely ones, best first."""
        top = tuple(
            TokenLogprob((self.best + rank) % self.vocab_size, self._logprob(rank))
            for rank in range(min(num_top, self.vocab_size))
        )
        return TokenLogprobs(token_id, self._logprob((token_id - self.best) % self.vocab_size), top)

    def _logprob(self, rank: int) -> float:
        return math.log(1 - self.ratio) + rank * math.log(self.ratio)


def _distribution(digest: hashlib.blake2b, vocab_size: int) -> _Distribution:
    value = digest.digest()
    ratio = 0.05 + 0.45 * int.from_bytes(value[8:], "little") / 2**64
    return _Distribution(int.from_bytes(value[:8], "little") % vocab_size, ratio, vocab_size)


class _Prefix:
    """What a request's hidden states are made of: its tokens, or what stands in their place, and its adapter."""

    def __init__(self, request: Request) -> None:
        identity = request.identity
        self._content_ids = identity.content_ids(request.all_token_ids)
        # Little-endian, so that the rule is the same on every machine: four bytes hold any token, eight any content.
        self._format = "I" if self._content_ids is request.all_token_ids else "q"
        self._key = b"" if identity.lora is None else hashlib.sha256("\0".join(identity.lora).encode()).digest()

    def bytes_of(self, start: int, end: int) -> bytes:
        """Positions [start, end)."""
        return struct.pack(f"<{end - start}{self._format}", *self._content_ids[start:end])

    def digest(self, end: int) -> hashlib.blake2b:
        """The digest of positions [0, end), to go on with."""
        return hashlib.blake2b(self.bytes_of(0, end), digest_size=16, key=self._key)
