"""Run by a Python that has vLLM: does scenarios with vLLM's own KVCacheManager and Scheduler, and says what they did.

It stands alone (nothing of ours is installed there) and speaks JSON, one object a line, over stdin and stdout:

    {"kind": "manager", "scenario": {"config", "ops"}}                     -> {"expect": […], "final": {…}}
    {"kind": "scheduler", "scenario": {"config", "arrivals", "actions"}}   -> {"steps": […], "final": {…}}
    anything that fails                                                    -> {"error": text}

The first line, sent when vLLM is imported, is {"version": text} or {"error": text}. Scenarios and answers are those of
labs/recorded/README.md; the pool is told after every operation and step. Nothing of vLLM is changed: one full-attention
group, no overlap of steps, statistics on. The scheduler is built for a model description without weights, and the model
is replaced by a rule: request number n with p tokens so far goes on with token (n * 31 + p) mod vocab.
"""

import json
import os
import sys
import tempfile
from types import SimpleNamespace

# vLLM prints while it is imported; only answers may reach the caller.
_answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", VLLM_USE_V2_MODEL_RUNNER="0")
# Whoever starts this may have fixed the seed; only a scenario says what the chains start from.
os.environ.pop("PYTHONHASHSEED", None)

STEP_LIMIT = 100_000  # a run that does not end is ended here: "drained" is false then
_COUNTS = ("requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits")
_OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "ffn_dim": 128,
    "num_attention_heads": 2,
    "word_embed_proj_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 1_000_000,
    "torch_dtype": "float32",
}


def _answer(content):
    print(json.dumps(content), file=_answers, flush=True)


def _import_vllm():
    """vLLM's classes and functions, by name."""
    import torch
    import vllm
    from vllm import SamplingParams
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus
    from vllm.v1.structured_output import StructuredOutputManager

    return SimpleNamespace(**locals())


def _expand(tokens):
    """Token ids: a pair [a, b] stands for a, a + 1, ..., b - 1."""
    ids = []
    for item in tokens:
        ids.extend(range(item[0], item[1])) if isinstance(item, list) else ids.append(item)
    return ids


def _block_hasher(vllm, algorithm, seed, block_size):
    """What names the full blocks of a request; seed None is vLLM's own start."""
    os.environ.pop("PYTHONHASHSEED", None)
    if seed is not None:
        os.environ["PYTHONHASHSEED"] = seed
    hash_function = vllm.get_hash_fn_by_name(algorithm)
    vllm.kv_cache_utils.init_none_hash(hash_function)
    return vllm.kv_cache_utils.get_request_block_hasher(block_size, hash_function)


def _kv_cache_config(vllm, num_blocks, block_size):
    spec = vllm.FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=vllm.torch.float32)
    return vllm.KVCacheConfig(num_blocks, [], [vllm.KVCacheGroupSpec(["layer"], spec)])


def _counts(stats):
    return {name: getattr(stats, name) for name in _COUNTS}


class _Pool:
    """What can be seen of vLLM's block pool."""

    def __init__(self, manager):
        self._pool = manager.block_pool

    @property
    def queue(self):
        return [block.block_id for block in self._pool.free_block_queue.get_all_free_blocks()]

    @property
    def cached_keys(self):
        return len(self._pool.cached_block_hash_to_block)

    @property
    def hashed(self):
        return [block for block in self._pool.blocks if block.block_hash is not None]

    @property
    def refs(self):
        return {str(block.block_id): block.ref_cnt for block in self._pool.blocks if block.ref_cnt and not block.is_null}


class ManagerRecorder:
    """vLLM's KVCacheManager, operation by operation."""

    def __init__(self, vllm, scenario):
        self.vllm, self.scenario, config = vllm, scenario, scenario["config"]
        self.manager = vllm.KVCacheManager(
            _kv_cache_config(vllm, config["num_blocks"], config["block_size"]),
            max_model_len=config["max_model_len"],
            scheduler_block_size=config["block_size"],
            hash_block_size=config["block_size"],
            enable_caching=config["enable_caching"],
            log_stats=True,
            watermark=config["watermark"],
        )
        self.hasher = _block_hasher(vllm, config["hash_algo"], config["hash_seed"], config["block_size"])
        self.pool, self.requests, self.lora_ids = _Pool(self.manager), {}, {}

    def record(self):
        """The answers to every operation, and the end."""
        expect = []
        for op in self.scenario["ops"]:
            answer = getattr(self, "_" + op["op"])(op)
            answer["state"] = {
                "queue": self.pool.queue,
                "cached_keys": self.pool.cached_keys,
                "hashed_blocks": len(self.pool.hashed),
                "usage": self.manager.usage,
            }
            expect.append(answer)
        return {"expect": expect, "final": self._final()}

    def _final(self):
        name_of = self.vllm.kv_cache_utils.get_block_hash
        tables = {id: self.manager.get_block_ids(id)[0] for id in self.requests}
        return {
            "queue": self.pool.queue,
            "cached_keys": self.pool.cached_keys,
            "usage": self.manager.usage,
            "stats": self._stats({})["stats"],
            "hashes": {str(block.block_id): name_of(block.block_hash).hex()[:16] for block in self.pool.hashed},
            "refs": self.pool.refs,
            "tables": {id: table for id, table in tables.items() if table},
        }

    def _new(self, op):
        lora = None
        if "lora" in op:
            name, path = op["lora"]
            lora = self.vllm.LoRARequest(name, self.lora_ids.setdefault((name, path), len(self.lora_ids) + 1), path)
        params = self.vllm.SamplingParams(
            prompt_logprobs=op.get("prompt_logprobs"), skip_reading_prefix_cache=op.get("skip_read")
        )
        self.requests[op["id"]] = self.vllm.Request(
            op["id"],
            _expand(op["tokens"]),
            params,
            None,
            lora_request=lora,
            cache_salt=op.get("salt"),
            block_hasher=self.hasher,
        )
        return {}

    def _lookup(self, op):
        blocks, hit, _ = self.manager.get_computed_blocks(self.requests[op["id"]])
        return {"hit": hit, "blocks": blocks.get_block_ids()[0]}

    def _allocate(self, op):
        request, blocks, hit, answer = self.requests[op["id"]], None, 0, {}
        if op["lookup"]:
            blocks, hit, _ = self.manager.get_computed_blocks(request)
            answer = {"hit": hit, "blocks": blocks.get_block_ids()[0]}
        remaining = request.num_tokens - request.num_computed_tokens - hit
        count = remaining if op["tokens"] is None else min(op["tokens"], remaining)
        hashed_before = {block.block_id for block in self.pool.hashed}
        new = self.manager.allocate_slots(
            request,
            count,
            hit,
            blocks,
            num_lookahead_tokens=op.get("lookahead", 0),
            full_sequence_must_fit=op.get("whole", False),
            has_scheduled_reqs=op.get("others", True),
        )
        answer.update(count=count, new=None if new is None else new.get_block_ids()[0])
        if new is not None:
            answer["evicted"] = [block for block in answer["new"] if block in hashed_before]
            if op["lookup"]:
                self.manager.record_prefix_cache_stats(request, hit)
            request.num_computed_tokens += hit + count
            request.status = self.vllm.RequestStatus.RUNNING
        return answer

    def _append(self, op):
        self.requests[op["id"]].append_output_token_ids(_expand(op["tokens"]))
        return {}

    def _free(self, op):
        request = self.requests.pop(op["id"])
        request.status = self.vllm.RequestStatus.FINISHED_LENGTH_CAPPED
        self.manager.free(request)
        return {}

    def _preempt(self, op):
        request = self.requests[op["id"]]
        self.manager.free(request)
        request.status, request.num_computed_tokens = self.vllm.RequestStatus.PREEMPTED, 0
        request.num_preemptions += 1
        return {}

    def _reset(self, op):
        return {"ok": self.manager.reset_prefix_cache()}

    def _stats(self, op):
        stats = self.manager.make_prefix_cache_stats()
        return {"stats": {"reset": stats.reset, **_counts(stats)}}


class SchedulerFactory:
    """vLLM's Schedulers, for one model description in a temporary folder."""

    def __init__(self, vllm):
        self.vllm, self._structured_output = vllm, None
        self._folder = tempfile.TemporaryDirectory(prefix="opt-description-")
        with open(os.path.join(self._folder.name, "config.json"), "w", encoding="utf-8") as file:
            json.dump(_OPT, file)
        self._model_configs = {}  # by longest request: describing a model takes longer than a short scenario

    def make(self, config):
        """A fresh Scheduler for a scenario's config. Raises ValueError when vLLM would run with other settings."""
        vllm_config = self._vllm_config(config)
        if self._structured_output is None:
            self._structured_output = self.vllm.StructuredOutputManager(vllm_config)
        return self.vllm.Scheduler(
            vllm_config=vllm_config,
            kv_cache_config=_kv_cache_config(self.vllm, config["num_blocks"], config["block_size"]),
            structured_output_manager=self._structured_output,
            block_size=config["block_size"],
            log_stats=True,
        )

    def _vllm_config(self, config):
        settings = {
            "max_num_batched_tokens": config["max_num_batched_tokens"],
            "max_num_seqs": config["max_num_seqs"],
            "long_prefill_token_threshold": config["long_prefill_token_threshold"],
            "enable_chunked_prefill": config["chunked_prefill"],
            "policy": config["policy"],
            "scheduler_reserve_full_isl": config["reserve_full_isl"],
            "watermark": config["watermark"],
            "async_scheduling": False,
        }
        cache_config = self.vllm.CacheConfig(
            block_size=config["block_size"],
            enable_prefix_caching=config["enable_caching"],
            prefix_caching_hash_algo="sha256",
        )
        vllm_config = self.vllm.VllmConfig(
            model_config=self._model_config(config["max_model_len"]),
            cache_config=cache_config,
            scheduler_config=self.vllm.SchedulerConfig(
                max_model_len=config["max_model_len"], is_encoder_decoder=False, **settings
            ),
            device_config=self.vllm.DeviceConfig(device="cpu"),
        )
        cache_config.num_gpu_blocks = config["num_blocks"]
        taken = {name: getattr(vllm_config.scheduler_config, name) for name in settings}
        taken |= {"block_size": cache_config.block_size, "enable_prefix_caching": cache_config.enable_prefix_caching}
        wanted = {**settings, "block_size": config["block_size"], "enable_prefix_caching": config["enable_caching"]}
        if taken != wanted:  # its own checks may replace what does not suit a platform
            raise ValueError("vLLM runs with %r, not with %r" % (taken, wanted))
        return vllm_config

    def _model_config(self, max_model_len):
        if max_model_len not in self._model_configs:
            self._model_configs[max_model_len] = self.vllm.ModelConfig(
                model=self._folder.name, skip_tokenizer_init=True, dtype="float32", max_model_len=max_model_len, seed=0
            )
        return self._model_configs[max_model_len]


class SchedulerRecorder:
    """vLLM's Scheduler, step by step, with the rule in place of a model."""

    def __init__(self, vllm, factory, scenario):
        self.vllm, self.scenario, config = vllm, scenario, scenario["config"]
        self.scheduler = factory.make(config)
        self.manager = self.scheduler.kv_cache_manager
        self.pool, self.vocab = _Pool(self.manager), config["vocab"]
        self.hasher = None
        if config["enable_caching"]:
            self.hasher = _block_hasher(vllm, "sha256", None, config["block_size"])
        self.requests, self.number, self.reported = {}, {}, {}
        self.totals = dict.fromkeys(_COUNTS, 0)
        self.preempted = []
        # Its output holds the ids as a set; their order is seen here.
        preempt = self.scheduler._preempt_request

        def preempt_and_note(request, *arguments, **named):
            self.preempted.append(request.request_id)
            return preempt(request, *arguments, **named)

        self.scheduler._preempt_request = preempt_and_note

    def record(self):
        """Every step, and the end."""
        events = [*self.scenario["arrivals"], *self.scenario["actions"]]
        last_event = max((event["step"] for event in events), default=-1)
        steps = []
        while len(steps) <= last_event or self.scheduler.has_unfinished_requests():
            if len(steps) == STEP_LIMIT:
                break
            steps.append(self._step(len(steps)))
        return {"steps": steps, "final": {"total_steps": len(steps), **self._final()}}

    def _step(self, step):
        answer, scheduler = {}, self.scheduler
        results = [self._act(action, answer) for action in self.scenario["actions"] if action["step"] == step]
        if results:
            answer["actions"] = results
        self._arrive(step)
        self.preempted.clear()
        output = scheduler.schedule()
        cached = output.scheduled_cached_reqs
        answer["scheduled"] = [list(item) for item in output.num_scheduled_tokens.items()]
        answer["new"] = [[new.req_id, new.num_computed_tokens] for new in output.scheduled_new_reqs]
        answer["resumed"] = [
            [id, hit] for id, hit in zip(cached.req_ids, cached.num_computed_tokens) if id in cached.resumed_req_ids
        ]
        answer["preempted"] = list(self.preempted)
        answer["tables"] = {one.request_id: self.manager.get_block_ids(one.request_id)[0] for one in scheduler.running}
        tokens = {id: self._sample(id) for id in output.num_scheduled_tokens}
        answer["sampled"] = [[id, token] for id, (token,) in ((id, new) for id, new in tokens.items() if new)]
        model_output = self.vllm.ModelRunnerOutput(
            req_ids=list(tokens),
            req_id_to_index={id: index for index, id in enumerate(tokens)},
            sampled_token_ids=list(tokens.values()),
        )
        self._note(scheduler.update_from_output(output, model_output), answer)
        answer["running"] = [request.request_id for request in scheduler.running]
        answer["waiting"] = [request.request_id for request in scheduler.waiting]
        answer["usage"], answer["queue"] = self.manager.usage, self.pool.queue
        return answer

    def _act(self, action, answer):
        if action["do"] == "abort":
            return bool(self.scheduler.finish_requests(action["id"], self.vllm.RequestStatus.FINISHED_ABORTED))
        self.preempted.clear()
        success = self.scheduler.reset_prefix_cache(reset_running_requests=action["force"])
        if action["force"]:
            answer["preempted_by_reset"] = list(self.preempted)
        return success

    def _arrive(self, step):
        for number, arrival in enumerate(self.scenario["arrivals"]):
            if arrival["step"] == step:
                params = self.vllm.SamplingParams(
                    max_tokens=arrival["max_tokens"], ignore_eos=True, prompt_logprobs=arrival.get("prompt_logprobs")
                )
                request = self.vllm.Request(
                    arrival["id"],
                    _expand(arrival["prompt"]),
                    params,
                    None,
                    arrival_time=float(number),
                    cache_salt=arrival.get("salt"),
                    priority=arrival.get("priority", 0),
                    block_hasher=self.hasher,
                )
                self.requests[request.request_id], self.number[request.request_id] = request, number
                self.scheduler.add_request(request)

    def _sample(self, request_id):
        """One token, or none while some of the request's tokens are still to be computed."""
        request = self.requests[request_id]
        if request.num_computed_tokens < request.num_tokens:
            return []
        return [(self.number[request_id] * 31 + request.num_tokens) % self.vocab]

    def _note(self, outputs, answer):
        """What the step's outputs tell a client, and its statistics."""
        finished = answer["finished"] = []
        for client in outputs.values():
            for one in client.outputs:
                if one.finish_reason is not None:
                    finished.append(one.request_id)
                if one.prefill_stats is not None:
                    self.reported.setdefault(one.request_id, one.prefill_stats.num_cached_tokens)
            if client.scheduler_stats is not None:
                stats = client.scheduler_stats.prefix_cache_stats
                counts = _counts(stats)
                for name, count in counts.items():
                    self.totals[name] += count
                if any(counts.values()):
                    answer["stats"] = list(counts.values())
                if stats.reset:
                    answer["stats_reset"] = True

    def _final(self):
        requests = self.requests
        return {
            "drained": not self.scheduler.has_unfinished_requests(),
            "stats": self.totals,
            "preemptions": {id: one.num_preemptions for id, one in requests.items() if one.num_preemptions},
            "outputs": {id: list(one.output_token_ids) for id, one in requests.items()},
            "reported_cached_tokens": self.reported,
            "finish_reason": {id: str(one.get_finished_reason()) for id, one in requests.items() if one.is_finished()},
            "queue": self.pool.queue,
            "cached_keys": self.pool.cached_keys,
            "hashed_blocks": [block.block_id for block in self.pool.hashed],
        }


def main():
    """Answer line by line until the input ends."""
    try:
        vllm = _import_vllm()
    except Exception as error:
        _answer({"error": "%s: %s" % (type(error).__name__, error)})
        return
    _answer({"version": vllm.vllm.__version__})
    factory = None
    for line in sys.stdin:
        try:
            asked = json.loads(line)
            if asked["kind"] == "manager":
                _answer(ManagerRecorder(vllm, asked["scenario"]).record())
            else:
                factory = factory or SchedulerFactory(vllm)
                _answer(SchedulerRecorder(vllm, factory, asked["scenario"]).record())
        except Exception as error:
            _answer({"error": "%s: %s" % (type(error).__name__, error)})


if __name__ == "__main__":
    main()
