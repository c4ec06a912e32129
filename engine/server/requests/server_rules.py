"""ServerRules: what one flavor of server accepts, and in which words it refuses.

ServerRules
├── VLLMRules     vllm_rules.py
└── SGLangRules   sglang_rules.py
"""

from __future__ import annotations

from typing import Any, Sequence

from engine.llm_engine import LLMEngine
from engine.server.options import ServerOptions
from engine.server.requests.refusal import Refusal

MAX_PROMPTS = 1024  # of one request, as in vLLM


class ServerRules:
    """The limits of one engine behind one kind of server."""

    part_separator: str  # between the text parts of one chat message
    can_name_tokens_by_id: bool  # whether there is a field return_tokens_as_token_ids

    def __init__(self, options: ServerOptions, engine: LLMEngine) -> None:
        self.options = options
        self.engine = engine
        self.max_model_len = engine.max_model_len
        self.num_pool_tokens = engine.manager.pool.num_usable * engine.manager.unit_size
        self.vocab_size = engine.runner.vocab_size

    def model_name(self, asked: str | None) -> str:
        """The name that the reply repeats. Raises Refusal (404) for a model that is not served."""
        raise NotImplementedError

    def salts(self, cache_salt: Any, extra_key: Any, num_prompts: int) -> list[str | None]:
        """The cache namespace of each prompt; None: the common one. Raises Refusal."""
        raise NotImplementedError

    def max_tokens(self, num_prompt_tokens: int, asked: int | None, name: str = "max_tokens") -> int:
        """Output tokens a prompt may have; `asked` None: what is left. Raises Refusal, also for a prompt that is too long."""
        raise NotImplementedError

    def no_prompts(self) -> Refusal:
        """For a request without a prompt."""
        raise NotImplementedError

    def empty_prompt(self) -> Refusal:
        """For a prompt without tokens."""
        raise NotImplementedError

    def check_token_ids(self, token_ids: Sequence[int]) -> None:
        """Raises Refusal for an id the model does not have."""
        outside = next((one for one in token_ids if not 0 <= one < self.vocab_size), None)
        if outside is not None:
            raise Refusal(f"Token id {outside} is out of vocabulary")

    def check_temperature(self, temperature: float) -> None:
        """Raises Refusal for one that this server does not take, though the engine would."""

    def check_priority(self, priority: int) -> None:
        """Raises Refusal for a priority that would be ignored."""
        if priority and self.engine.config.policy != "priority":
            message = (
                "priority is not 0, and this server does not schedule by priority; accepted: 0, or start it with policy priority"
            )
            raise Refusal(message, param="priority")

    def error_body(self, refusal: Refusal) -> dict[str, Any]:
        """The JSON of an error reply."""
        raise NotImplementedError

    def error_event(self, refusal: Refusal) -> dict[str, Any]:
        """The JSON of an error inside a stream."""
        raise NotImplementedError
