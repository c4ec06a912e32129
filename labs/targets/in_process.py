"""InProcessTarget: an LLMEngine in this process, with the real model or the simulated runner."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Sequence

from engine.errors import EngineError
from engine.kvcache.cache_identity import LoRA, MultimodalItem
from engine.llm_engine import LLMEngine
from engine.request import SamplingParams
from engine.request_output import RequestOutput
from labs.targets.base import CacheCounters, Completion, TargetError, TargetInfo


class InProcessTarget:
    """Target over one engine; requests are greedy and ignore end-of-text, so that lengths are the lab's choice."""

    def __init__(self, engine: LLMEngine, kind: str, model: str, dtype: str, device: str) -> None:
        self.engine, self.last_reset = engine, ""
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
        prompt_logprobs: bool = False,
        lora: LoRA | None = None,
        images: Sequence[MultimodalItem] = (),
        prompt_embeds: Sequence[bytes] | None = None,
    ) -> Completion:
        params = _params(max_tokens, logprobs=2 if logprob_gaps else None, prompt_logprobs=0 if prompt_logprobs else None)
        identity = {"cache_salt": cache_salt, "lora": lora, "mm_items": images, "prompt_embeds": prompt_embeds}
        return self._serve([prompt_token_ids], params, [identity])[0]

    def complete_all(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, cache_salts: Sequence[str | None] | None = None
    ) -> list[Completion]:
        salts = [None] * len(prompts) if cache_salts is None else cache_salts
        return self._serve(prompts, _params(max_tokens), [{"cache_salt": salt} for salt in salts])

    def counters(self) -> CacheCounters:
        stats = self.engine.take_stats()
        return CacheCounters(stats.queries, stats.hits, stats.preempted_queries, stats.preempted_hits)

    def reset(self) -> bool:
        done = self.engine.reset_prefix_cache()
        self.last_reset = "reset" if done else "refused"
        return done

    def rename(self) -> bool:
        return False  # its reset is our own

    def block_hashes(
        self,
        prompt_token_ids: Sequence[int],
        *,
        cache_salt: str | None = None,
        lora: LoRA | None = None,
        images: Sequence[MultimodalItem] = (),
        prompt_embeds: Sequence[bytes] | None = None,
    ) -> list[str]:
        request = self.engine.make_request(
            prompt_token_ids, cache_salt=cache_salt, lora=lora, mm_items=images, prompt_embeds=prompt_embeds
        )
        return [name.hex() for name in request.block_hashes]

    def tokenizer(self) -> Any | None:
        return self.engine.tokenizer

    def close(self) -> None:
        # The K/V storage is the large part; a later target allocates its own.
        del self.engine

    def _serve(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, identities: Sequence[dict[str, Any]]
    ) -> list[Completion]:
        try:
            return [_completion(output) for output in self.engine.generate(list(prompts), params, fields_by_prompt=identities)]
        except EngineError as error:
            raise TargetError(f"the engine refused a request: {error}") from error


def _params(max_tokens: int, logprobs: int | None = None, prompt_logprobs: int | None = None) -> SamplingParams:
    return SamplingParams(
        temperature=0.0, max_tokens=max_tokens, ignore_eos=True, logprobs=logprobs, prompt_logprobs=prompt_logprobs
    )


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
