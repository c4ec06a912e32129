"""ServerRules: what one flavor of server accepts, and in which words it refuses.

ServerRules
├── VLLMRules     vllm_rules.py
└── SGLangRules   sglang_rules.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

from engine.llm_engine import LLMEngine
from engine.server.options import ServerOptions
from engine.server.requests.refusal import Refusal
from engine.server.requests.request_body import ChatBody, GenerationBody

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer
    from engine.server.requests.job import Job

MAX_PROMPTS = 1024  # of one request, as in vLLM


class ServerRules:
    """The limits of one engine behind one kind of server."""

    part_separator: str  # between the text parts of one chat message
    waits_for_stops: bool  # whether a stream says nothing at all while its text may be the beginning of a stop text
    ignored_fields: frozenset[str]  # of the bodies here: the other server's, which this one does not know

    def __init__(self, options: ServerOptions, engine: LLMEngine) -> None:
        self.options = options
        self.engine = engine
        self.max_model_len = engine.max_model_len
        self.num_pool_tokens = engine.manager.pool.num_usable * engine.manager.unit_size
        self.vocab_size = engine.runner.vocab_size

    def model_name(self, asked: str | None) -> str:
        """The name that the reply repeats. Raises Refusal (404) for a model that is not served."""
        raise NotImplementedError

    def check_options(self, asked: GenerationBody) -> None:
        """Raises Refusal for a field that the others do not allow."""
        raise NotImplementedError

    def chat_messages(
        self, messages: list[dict[str, str]], add_generation_prompt: bool | None, text: TextTokenizer
    ) -> list[dict[str, str]]:
        """The messages as the chat template of `text` gets them."""
        return messages

    def chat_max_tokens(self, asked: ChatBody) -> tuple[str, int | None]:
        """The field that says how many output tokens a chat may have, and what it says."""
        if asked.max_completion_tokens is not None:
            return "max_completion_tokens", asked.max_completion_tokens
        return "max_tokens", asked.max_tokens

    def salts(self, cache_salt: Any, extra_key: Any, num_prompts: int) -> list[str | None]:
        """The cache namespace of each prompt; None: the common one. Raises Refusal."""
        raise NotImplementedError

    def max_tokens(self, num_prompt_tokens: int, asked: int | None, name: str = "max_tokens") -> int:
        """Output tokens a prompt may have; `asked` None: what is left. Raises Refusal, also for a prompt that is too long."""
        raise NotImplementedError

    def no_prompts(self, value: Any) -> Refusal:
        """For a request whose prompt is none: null, an empty text, an empty list."""
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

    def check_stops(self, stops: Sequence[str]) -> None:
        """Raises Refusal for stop texts that this server does not take, though the engine would."""

    def read_headers(self, job: Job, headers: Mapping[str, str]) -> Job:
        """The job with what its HTTP headers say of it; their names in any case."""
        return job

    def num_held(self, pending: str, stops: Sequence[str]) -> int:
        """Of a stream's text that is not told yet, the characters at its end to keep back for the sake of stop texts."""
        raise NotImplementedError

    def told_text(self, text: str, token_ids: Sequence[int], tokenizer: TextTokenizer) -> str:
        """The text of a whole answer as its client gets it."""
        return text

    def error_body(self, refusal: Refusal) -> dict[str, Any]:
        """The JSON of an error reply."""
        raise NotImplementedError

    def error_event(self, refusal: Refusal) -> dict[str, Any]:
        """The JSON of an error inside a stream."""
        raise NotImplementedError
