"""InProcessTarget: an LLMEngine in this process, with the real model or the simulated runner."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Sequence

from engine.errors import EngineError
from engine.llm_engine import LLMEngine
from engine.request import SamplingParams
from engine.request_output import RequestOutput
from labs.targets.base import CacheCounters, Completion, TargetError, TargetInfo


class InProcessTarget:
    """Target over one engine; requests are greedy and ignore end-of-text, so that lengths are the lab's choice."""

    def __init__(self, engine: LLMEngine, kind: str, model: str, dtype: str, device: str) -> None:
        self._engine = engine
        config = engine.config
        self.info = TargetInfo(
            kind=kind,
            prefix_cache=config.prefix_cache if config.enable_prefix_caching else "none",
            unit_size=config.unit_size,
            num_blocks=engine.manager.pool.num_usable,
            vocab_size=engine.runner.vocab_size,
            max_model_len=engine.max_model_len,
            model=model,
            dtype=dtype,
            device=device,
            config=asdict(config),
        )

    def complete(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int = 1,
        cache_salt: str | None = None,
        logprob_gaps: bool = False,
    ) -> Completion:
        params = _params(max_tokens, logprobs=2 if logprob_gaps else None)
        return _completion(self._generate([prompt_token_ids], params, cache_salt=cache_salt)[0])

    def complete_all(self, prompts: Sequence[Sequence[int]], *, max_tokens: int) -> list[Completion]:
        return [_completion(output) for output in self._generate(prompts, _params(max_tokens))]

    def counters(self) -> CacheCounters:
        stats = self._engine.take_stats()
        return CacheCounters(queries=stats.queries, hits=stats.hits)

    def reset(self) -> bool:
        return self._engine.reset_prefix_cache()

    def block_hashes(self, prompt_token_ids: Sequence[int], *, cache_salt: str | None = None) -> list[str]:
        request = self._engine.make_request(prompt_token_ids, cache_salt=cache_salt)
        return [name.hex() for name in request.block_hashes]

    def tokenizer(self) -> Any | None:
        return self._engine.tokenizer

    def close(self) -> None:
        # The K/V storage is the large part; a later target allocates its own.
        del self._engine

    def _generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams, **fields: Any) -> list[RequestOutput]:
        try:
            return self._engine.generate(list(prompts), params, **fields)
        except EngineError as error:
            raise TargetError(f"the engine refused a request: {error}") from error


def _params(max_tokens: int, logprobs: int | None = None) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, logprobs=logprobs)


def _completion(output: RequestOutput) -> Completion:
    gaps = tuple(entry.top[0].logprob - entry.top[1].logprob for entry in output.logprobs or ())
    return Completion(
        output_token_ids=tuple(output.output_token_ids),
        num_prompt_tokens=len(output.prompt_token_ids),
        num_cached_tokens=output.num_cached_tokens,
        ttft_s=output.metrics.ttft_s,
        e2e_s=output.metrics.e2e_s,
        finish_reason=output.finish_reason.value,
        top_logprob_gaps=gaps,
    )
