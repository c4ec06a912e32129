"""RequestLimits: which requests an engine can never serve, refused by name of the limit.

The bare Scheduler keeps vLLM's behaviour: a request that can never fit waits at the head of the queue for ever.
"""

from __future__ import annotations

from engine.config import EngineConfig
from engine.errors import RequestRefused
from engine.request import Request
from engine.runner import Runner


class RequestLimits:
    """The limits of one engine.

    max_model_len  tokens of one request
    num_blocks     blocks of the pool, the null block included
    has_tokenizer  whether texts can be read
    """

    def __init__(self, config: EngineConfig, runner: Runner, max_model_len: int, num_blocks: int, has_tokenizer: bool) -> None:
        self._config = config
        self._runner = runner
        self._max_model_len = max_model_len
        self._num_blocks = num_blocks
        self._has_tokenizer = has_tokenizer

    @property
    def num_usable_tokens(self) -> int:
        """Tokens the pool can hold."""
        return (self._num_blocks - 1) * self._config.unit_size

    def check(self, request: Request) -> None:
        """Raises RequestRefused if this engine can never serve the request to its last token."""
        self._check_content(request)
        self._check_length(request)

    def _check_content(self, request: Request) -> None:
        vocab_size = self._runner.vocab_size
        if min(request.all_token_ids) < 0 or max(request.all_token_ids) >= vocab_size:
            raise RequestRefused(f"a token id outside the vocabulary; accepted: 0 to {vocab_size - 1}")
        if request.sampling_params.stop and not self._has_tokenizer:
            raise RequestRefused("stop texts, but this engine has no tokenizer; accepted: stop_token_ids")
        if not self._runner.is_simulated and not request.identity.is_plain:
            # What cannot be applied must not be served: that would be a wrong answer without an error.
            self._runner.check_identity(request)

    def _check_length(self, request: Request) -> None:
        config = self._config
        # Without output a prompt is computed as it is for one token: to its last position.
        num_outputs = max(1, request.sampling_params.max_tokens)
        num_tokens = request.num_prompt_tokens + num_outputs
        wanted = f"prompt of {request.num_prompt_tokens} tokens + max_tokens {num_outputs} = {num_tokens}"
        if num_tokens > self._max_model_len:
            raise RequestRefused(f"{wanted} exceeds max_model_len {self._max_model_len}")
        if num_tokens > self.num_usable_tokens:
            raise RequestRefused(
                f"{wanted} exceeds the pool's {self.num_usable_tokens} tokens"
                f" (num_gpu_blocks {self._num_blocks}, one of them the null block, of {config.unit_size} tokens)"
            )
        # Preempted, it would have to recompute all it has in one step.
        if not config.enable_chunked_prefill and num_tokens - 1 > config.max_num_batched_tokens:
            raise RequestRefused(
                f"{wanted} exceeds max_num_batched_tokens {config.max_num_batched_tokens} + 1, with chunked prefill off"
            )
