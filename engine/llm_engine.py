"""LLMEngine: wires the rooms together. One step: schedule, run, update.

    engine = LLMEngine(EngineConfig(model="smollm2"))
    outputs = engine.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8))

For streaming, `add_request` and call `step` while `has_unfinished_requests`.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Sequence

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError, RequestRefused
from engine.kvcache.cache_identity import LoRA, MultimodalItem
from engine.kvcache.kv_events import AllBlocksCleared, KVEvent
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.metrics import PrefixCacheStats
from engine.request import FinishReason, Request, RequestStatus, SamplingParams
from engine.request_limits import RequestLimits
from engine.request_output import RequestOutput
from engine.request_progress import RequestProgress
from engine.runner import Runner, TokenLogprobs
from engine.scheduler import Scheduler, SchedulerOutput

if TYPE_CHECKING:
    from engine.model.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Prompt = str | Sequence[int]
LoadProgress = Callable[[str, int, int], None]  # what is being loaded, done, total


@dataclass(slots=True)
class _Record:
    """What the engine keeps beside a request while it is unfinished."""

    request: Request
    prompt_token_ids: list[int]  # copied once: every output carries them
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: dict[int, TokenLogprobs]
    told_prompt_logprobs: list[TokenLogprobs | None] | None = None  # the same for outputs: built once, as it stays the same


class LLMEngine:
    """Serves requests on one model, one pool and one prefix cache.

    config     every choice; see EngineConfig
    runner     computes steps; None loads config.model
    tokenizer  text to ids and back; None with a runner of one's own: prompts are token ids
    cache_dir  where converted models are kept; None: the user's cache folder
    on_load    told about the progress of loading a model
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        cache_dir: str | None = None,
        on_load: LoadProgress | None = None,
    ) -> None:
        if runner is None:
            from engine.model.loader import load_model
            from engine.model.model_runner import ModelRunner

            loaded = load_model(config, cache_dir=cache_dir, progress=on_load)
            runner, tokenizer = ModelRunner(loaded, config), loaded.tokenizer
            loaded.drop_layers()
        self.config = config
        self.runner = runner
        self.tokenizer = tokenizer
        self.max_model_len = self._resolve_max_model_len()
        self._num_blocks = config.num_blocks_for(runner.bytes_per_token())
        self.manager, self._block_hasher = open_kv_cache(config, self._num_blocks, self.max_model_len, runner.now)
        runner.allocate_kv(self._num_blocks, config.unit_size)
        self.scheduler = Scheduler(config, self.manager, self.max_model_len)
        self._limits = RequestLimits(config, runner, self.max_model_len, self._num_blocks, tokenizer is not None)
        self._records: dict[str, _Record] = {}
        self._num_requests = 0
        self.last_plan: SchedulerOutput | None = None  # of the latest step; None while or after its planning failed

    @property
    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_unfinished_requests

    def make_request(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        cache_salt: str | None = None,
        lora: LoRA | None = None,
        mm_items: Sequence[MultimodalItem] = (),
        prompt_embeds: Sequence[bytes] | None = None,
        priority: int = 0,
    ) -> Request:
        """A request of this engine, named block by block, without queueing it."""
        if request_id is None:
            request_id = self._next_request_id()
        return Request(
            request_id,
            self._token_ids(prompt),
            sampling_params,
            cache_salt=cache_salt,
            lora=lora,
            mm_items=mm_items,
            prompt_embeds=prompt_embeds,
            priority=priority,
            arrival_time=self.runner.now(),
            block_hasher=self._block_hasher,
            exact_ints=isinstance(prompt, str),
        )

    def add_request(self, prompt: Prompt | Request, sampling_params: SamplingParams | None = None, **fields: Any) -> str:
        """Queue a prompt (text or token ids) and return its request id; `fields` as in `make_request`.

        A Request made elsewhere is taken over: its blocks are named anew, as this engine names them.
        Raises RequestRefused, naming the limit, for a request this engine can never serve.
        """
        if isinstance(prompt, Request):
            if sampling_params is not None or fields:
                names = ", ".join([*(["sampling_params"] if sampling_params is not None else []), *fields])
                raise RequestRefused(f"{names} beside a Request, which has its own; accepted: the Request alone")
            request = prompt
            if request.status is not RequestStatus.WAITING or request.num_computed_tokens:
                raise RequestRefused(f"a Request that is {request.status.value} already; accepted: a new one")
            request.adopt(self._block_hasher, self.runner.now())
        else:
            request = self.make_request(prompt, sampling_params, **fields)
        if request.request_id in self._records:
            raise RequestRefused(f"request id {request.request_id!r} is in use; accepted: an id of no unfinished request")
        self.check_request(request)
        wants_logprobs = request.sampling_params.logprobs is not None
        self._records[request.request_id] = _Record(
            request, request.prompt_token_ids, [] if wants_logprobs else None, {}
        )
        self.scheduler.add_request(request)
        return request.request_id

    def check_request(self, request: Request) -> None:
        """Raises RequestRefused for a request this engine can never serve; queues nothing, safe from any thread."""
        self._limits.check(request)

    def abort_request(self, request_id: str) -> bool:
        """End a request and free its blocks; False when there is no such unfinished request."""
        record = self._records.pop(request_id, None)
        if record is None:
            return False
        self.scheduler.finish(record.request, FinishReason.ABORT)
        return True

    def logprobs_of(self, request_id: str) -> tuple[list[TokenLogprobs] | None, list[TokenLogprobs | None] | None]:
        """Of an unfinished request the log-probabilities so far, of its output and of its prompt; None where not asked for."""
        record = self._records.get(request_id)
        return (None, None) if record is None else (record.logprobs, self._prompt_logprobs(record))

    def step(self) -> list[RequestOutput]:
        """Compute one step; the outputs of the requests that got a token in it."""
        self.last_plan = None
        with self._start_over_if_it_fails():
            plan = self.scheduler.schedule()
        self.last_plan = plan
        if not plan.scheduled:
            return []
        started_s = self.runner.now()
        try:
            results = self.runner.execute(plan)
        except BaseException:  # Ctrl-C too: blocks named in advance must not be served without content
            with self._start_over_if_it_fails():
                self.scheduler.roll_back(plan)
            raise
        with self._start_over_if_it_fails():
            for request, _ in plan.admitted:
                request.metrics.first_scheduled_s = started_s
            self.scheduler.update_from_output(plan, results.sampled_token_ids, self.runner.eos_token_ids)
            for request_id, by_position in results.prompt_logprobs.items():
                if by_position and request_id in self._records:
                    self._records[request_id].prompt_logprobs.update(by_position)
                    self._records[request_id].told_prompt_logprobs = None
            return self._outputs(plan, results.sampled_token_ids, results.logprobs)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        fields_by_prompt: Sequence[Mapping[str, Any]] | None = None,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Serve prompts to their end; outputs in the order of the prompts.

        `fields` as in `make_request`, for all prompts; `fields_by_prompt` those that each has of its own.

        On any error or interruption the requests still unfinished are aborted, so that the engine stays usable.
        """
        if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral)):
            prompts = [prompts]  # one prompt: a text, or its ids
        if not isinstance(sampling_params, Sequence):
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        if len(sampling_params) != len(prompts):
            raise ValueError(f"{len(sampling_params)} sampling_params for {len(prompts)} prompts; accepted: one, or one per prompt")
        own_fields = [{}] * len(prompts) if fields_by_prompt is None else fields_by_prompt
        request_ids: list[str] = []
        try:
            for prompt, params, own in zip(prompts, sampling_params, own_fields, strict=True):
                request_ids.append(self.add_request(prompt, params, **fields, **own))
            finished = self._run(request_ids, progress)
        finally:
            for request_id in request_ids:
                self.abort_request(request_id)
        return [finished[request_id] for request_id in request_ids]

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; False, with a logged reason, while requests hold blocks."""
        success = self.manager.reset_prefix_cache()
        if not success:
            in_use = self.manager.pool.num_usable - self.manager.num_available
            logger.warning("prefix cache not reset: %d blocks are in use; finish or abort the running requests first", in_use)
        return success

    def take_stats(self) -> PrefixCacheStats:
        """Lookups and hits since the last call, in tokens."""
        return self.manager.take_stats()

    def take_kv_events(self) -> list[KVEvent]:
        """What the cache stored and removed since the last call; nothing unless `enable_kv_cache_events`."""
        return self.manager.take_kv_events()

    @contextmanager
    def _start_over_if_it_fails(self) -> Iterator[None]:
        """Bookkeeping that stops half-way (Ctrl-C) leaves nothing to trust: a new pool, and all requests queued again."""
        try:
            yield
        except BaseException:
            events = [*self.manager.take_kv_events(), AllBlocksCleared()]
            self.manager, hasher = open_kv_cache(self.config, self._num_blocks, self.max_model_len, self.runner.now)
            if self.manager.prefix_cache.events is not None:
                self.manager.prefix_cache.events.extend(events)  # followers learn of it
            self.scheduler = Scheduler(self.config, self.manager, self.max_model_len)
            self._block_hasher = self._block_hasher or hasher  # names must stay the same: requests carry them
            self._records = {key: record for key, record in self._records.items() if not record.request.is_finished}
            for record in self._records.values():
                if record.request.status is not RequestStatus.WAITING or record.request.num_computed_tokens:
                    record.request.restart()
                self.scheduler.add_request(record.request)
            raise

    def _next_request_id(self) -> str:
        while True:
            request_id = f"request-{self._num_requests}"
            self._num_requests += 1
            if request_id not in self._records:
                return request_id

    def _run(self, request_ids: Iterable[str], progress: bool) -> dict[str, RequestOutput]:
        pending = set(request_ids)
        finished: dict[str, RequestOutput] = {}
        with RequestProgress(len(pending), progress) as advance:
            while pending:
                outputs = self.step()
                if not outputs and not self.scheduler.running:
                    raise EngineError("no waiting request can be admitted: the pool is held by requests that do not run")
                for output in outputs:
                    if output.finished and output.request_id in pending:
                        pending.discard(output.request_id)
                        finished[output.request_id] = output
                        advance()
        return finished

    def _outputs(
        self, plan: SchedulerOutput, token_ids: list[int | None], logprobs: list[TokenLogprobs | None]
    ) -> list[RequestOutput]:
        now_s = self.runner.now()
        outputs: list[RequestOutput] = []
        for item, token_id, token_logprobs in zip(plan.scheduled, token_ids, logprobs, strict=True):
            record = self._records.get(item.request.request_id)
            if token_id is None or record is None or record.request is not item.request:
                continue  # the id may be another request's by now
            request = record.request
            request.metrics.token_times_s.append(now_s)
            new_token_ids = [token_id] if request.num_output_tokens else []  # of max_tokens 0 none is kept
            if record.logprobs is not None and token_logprobs is not None and new_token_ids:
                record.logprobs.append(token_logprobs)
            text = self._stopped_text(request)
            if text is not None:
                self.scheduler.finish(request, FinishReason.STOP)
                request.finish_reason = FinishReason.STOP  # also when the length ended it in this very step
            if request.is_finished:
                request.metrics.finished_s = now_s
                del self._records[request.request_id]
            outputs.append(self._output(record, new_token_ids, text))
        return outputs

    def _output(self, record: _Record, new_token_ids: list[int], stopped_text: str | None) -> RequestOutput:
        request = record.request
        text = stopped_text
        if request.is_finished and text is None and self.tokenizer is not None:
            text = self.tokenizer.decode(self._visible_ids(request))
        return RequestOutput(
            request_id=request.request_id,
            prompt_token_ids=record.prompt_token_ids,
            output_token_ids=request.output_token_ids,
            new_token_ids=new_token_ids,
            text=text,
            finished=request.is_finished,
            finish_reason=request.finish_reason,
            num_cached_tokens=request.num_cached_tokens or 0,
            metrics=request.metrics,
            logprobs=record.logprobs,
            prompt_logprobs=self._prompt_logprobs(record),
        )

    def _prompt_logprobs(self, record: _Record) -> list[TokenLogprobs | None] | None:
        """One for each prompt token, if asked for: the same list until more of them are computed."""
        request = record.request
        if request.sampling_params.prompt_logprobs is None:
            return None
        if record.told_prompt_logprobs is None:
            record.told_prompt_logprobs = [record.prompt_logprobs.get(one) for one in range(request.num_prompt_tokens)]
        return record.told_prompt_logprobs

    def _visible_ids(self, request: Request) -> list[int]:
        """Output ids without the token that ended the request."""
        ids = request.output_token_ids
        ended_by_token = request.finish_reason is FinishReason.STOP and ids
        stop_ids = self.runner.eos_token_ids.union(request.sampling_params.stop_token_ids)
        return ids[:-1] if ended_by_token and ids[-1] in stop_ids else ids

    def _stopped_text(self, request: Request) -> str | None:
        """The output text before the first stop text; None when none has appeared.

        An empty one is in any text, but for an answer of no tokens: nothing was said that it could end.
        """
        stops = request.sampling_params.stop
        if not stops or not request.num_output_tokens:
            return None
        # A stop text of n characters has at most 4n bytes, and a token at least one: only so many can be new.
        tail = self.tokenizer.decode(request.output_token_ids[-(4 * max(len(stop) for stop in stops) + 4) :])
        if not any(stop in tail for stop in stops):
            return None
        text = self.tokenizer.decode(request.output_token_ids)
        cuts = [text.find(stop) for stop in stops if stop in text]
        return text[: min(cuts)] if cuts else None

    def _token_ids(self, prompt: Prompt) -> Sequence[int]:
        if not isinstance(prompt, str):
            return prompt
        if self.tokenizer is None:
            raise RequestRefused("a text prompt, but this engine has no tokenizer; accepted: token ids")
        return self.tokenizer.encode(prompt)

    def _resolve_max_model_len(self) -> int:
        limit = self.runner.max_model_len
        if self.config.max_model_len is None:
            return limit
        if self.config.max_model_len > limit:
            raise ConfigError("max_model_len", self.config.max_model_len, f"1 to {limit}, what the model allows")
        return self.config.max_model_len
