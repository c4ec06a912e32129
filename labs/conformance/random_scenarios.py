"""Random scenarios: fresh work for a manager or a scheduler, without answers, the same for the same seed.

Prompts are related as those of a server are (prompt_stream.py); salts and adapters keep some of them apart. Whoever
runs such a scenario finds hits, evictions, failures and preemptions in a pool that is too small for it, and hits in one
that is not. Schema and rules: labs/recorded/README.md.
"""

from __future__ import annotations

import random
from typing import Any

from engine.config import HASH_ALGORITHMS
from engine.request import Request, RequestStatus
from labs.conformance.manager_replay import ManagerReplay
from labs.conformance.prompt_stream import PromptStream
from labs.conformance.scheduler_replay import SchedulerReplay

POOL_SIZES = (8, 20, 200)  # blocks: too small for many a request, for all requests at once, for none
BLOCK_SIZES = (2, 4, 8, 16, 32)  # tokens
SALTS = (None, None, None, None, "first", "second")
LORAS = (None, None, None, ["first", "/adapters/one"], ["first", "/adapters/two"], ["other", "/adapters/one"])
WATERMARKS = (0.0, 0.0, 0.0, 0.02, 0.1, 0.3)
GAPS = ((0, 0, 0, 0, 0, 1), (0, 0, 0, 1, 1, 2, 4), (1, 3, 9))  # steps between arrivals: crowded, busy, quiet
NUM_IDLE_STEPS = 10  # after as many without work, nothing will change any more

Scenario = dict[str, Any]


def random_scheduler_scenario(
    seed: int, num_requests: int, num_blocks: int, block_size: int | None = None
) -> Scenario:
    """A run of a scheduler, without `steps` and `final`.

    seed          draws everything that is not given
    num_requests  at least 1
    num_blocks    of the pool, block 0 included; at least 2
    block_size    tokens; None draws one of BLOCK_SIZES

    What waits for ever, or starts over again and again, is aborted in the end, so that every run ends.
    """
    rng = random.Random(f"scheduler {seed} {num_requests} {num_blocks} {block_size}")
    block_size = block_size or rng.choice(BLOCK_SIZES)
    prompts = PromptStream(rng, block_size)
    config = _scheduler_config(rng, num_blocks, block_size, prompts)
    arrivals: list[Scenario] = []
    step, gaps = 0, rng.choice(GAPS)
    for number in range(num_requests):
        step += rng.choice(gaps)
        prompt = prompts.next_prompt()[: config["max_model_len"] - 1]
        max_tokens = rng.randint(1, rng.choice((3, 12, 6 * block_size)))
        arrival = {"step": step, "id": f"r{number}", "prompt": prompt, "max_tokens": max_tokens}
        answer = [(number * 31 + p) % prompts.vocab for p in range(len(prompt), len(prompt) + max_tokens)]
        prompts.remember(prompt + answer)
        if salt := rng.choice(SALTS):
            arrival["salt"] = salt
        if rng.random() < 0.5:
            arrival["priority"] = rng.randint(-2, 3)
        if rng.random() < 0.08:
            arrival["prompt_logprobs"] = rng.randint(0, 3)
        arrivals.append(arrival)
    scenario = {
        "name": f"random-scheduler-{seed}-{num_requests}x{num_blocks}",
        "tags": ["random"],
        "config": config,
        "arrivals": arrivals,
        "actions": _actions(rng, arrivals, config),
    }
    end = _first_idle_step(scenario)
    scenario["actions"] += [{"step": end, "do": "abort", "id": arrival["id"]} for arrival in arrivals]
    scenario["actions"].append({"step": end, "do": "reset", "force": False})
    return scenario


def _scheduler_config(rng: random.Random, num_blocks: int, block_size: int, prompts: PromptStream) -> Scenario:
    longest = prompts.longest
    chunked = rng.random() < 0.8
    # Without chunks vLLM wants a budget for the longest request.
    max_model_len = rng.choice((4096, 4096, longest + 5, longest // 2)) if chunked else rng.choice((longest + 5, longest // 2))
    max_num_seqs = rng.choice((1, 2, 4, 8, 16))
    budget = rng.choice((16, 32, 64, 128, 512)) if chunked else max_model_len + rng.choice((0, 7, max_model_len))
    return {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "enable_caching": rng.random() < 0.92,
        "watermark": rng.choice(WATERMARKS),
        "max_model_len": max_model_len,
        "max_num_batched_tokens": max(budget, max_num_seqs),
        "max_num_seqs": max_num_seqs,
        "long_prefill_token_threshold": rng.choice((0, 0, 0, rng.randint(1, max(2, longest // 4)))),
        "policy": rng.choice(("fcfs", "priority")),
        "reserve_full_isl": rng.random() < 0.7,
        "chunked_prefill": chunked,
        "vocab": prompts.vocab,
    }


def _actions(rng: random.Random, arrivals: list[Scenario], config: Scenario) -> list[Scenario]:
    """Some aborts, some too early or too late, and a few resets."""
    last = arrivals[-1]["step"]
    room = (config["num_blocks"] - 1) * config["block_size"]
    actions = []
    for arrival in arrivals:
        # One that never fits keeps all behind it waiting, for ever under fcfs.
        hopeless = len(arrival["prompt"]) + arrival["max_tokens"] > room
        if rng.random() < (0.9 if hopeless else 0.1):
            actions.append({"step": max(0, arrival["step"] + rng.randint(-1, 12)), "do": "abort", "id": arrival["id"]})
    for _ in range(rng.choice((0, 1, 1, len(arrivals) // 12))):
        actions.append({"step": rng.randint(0, last + 10), "do": "reset", "force": rng.random() < 0.5})
    return sorted(actions, key=lambda action: action["step"])


def _first_idle_step(scenario: Scenario) -> int:
    """The step behind the last with work, by our scheduler; or one at which all would long be done in an ample pool."""
    arrivals = scenario["arrivals"]
    last_event = max(event["step"] for event in (*arrivals, *scenario["actions"]))
    limit = last_event + 3 * sum(len(arrival["prompt"]) // 16 + arrival["max_tokens"] for arrival in arrivals)
    num_idle = 0
    for step, did in enumerate(SchedulerReplay({**scenario, "steps": [{}] * limit, "final": {}}).run()):
        num_idle = 0 if did.ours.get("scheduled") else num_idle + 1
        done = not did.ours.get("running") and not did.ours.get("waiting")
        if step > last_event and (done or num_idle >= NUM_IDLE_STEPS):
            return step + 1
    return limit


def random_manager_scenario(seed: int, num_requests: int, num_blocks: int, block_size: int | None = None) -> Scenario:
    """Operations on a manager, without `expect` and `final`; requests come, grow, wait, lose their blocks and go.

    seed          draws everything that is not given
    num_requests  at least 1
    num_blocks    of the pool, block 0 included; at least 2
    block_size    tokens; None draws one of BLOCK_SIZES

    Some requests are left unfinished at the end.
    """
    rng = random.Random(f"manager {seed} {num_requests} {num_blocks} {block_size}")
    block_size = block_size or rng.choice(BLOCK_SIZES)
    algorithm = rng.choice(HASH_ALGORITHMS)
    seeds = ("0", "another start") if algorithm.startswith("xxhash") else (None, None, "0")  # vLLM's default there is random
    config = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "hash_algo": algorithm,
        "hash_seed": rng.choice(seeds),
        "enable_caching": rng.random() < 0.93,
        "watermark": rng.choice(WATERMARKS),
        "max_model_len": 100_000,
    }
    ops = _ManagerOps(rng, config, num_requests).make()
    return {"name": f"random-manager-{seed}-{num_requests}x{num_blocks}", "tags": ["random"], "config": config, "ops": ops}


class _ManagerOps:
    """Operations, each chosen when those before are done, so that every one is legal."""

    def __init__(self, rng: random.Random, config: Scenario, num_requests: int) -> None:
        self._rng, self._num_requests, self._block_size = rng, num_requests, config["block_size"]
        self._prompts = PromptStream(rng, config["block_size"])
        self._replay = ManagerReplay({"config": config})
        self._most_at_once = rng.randint(2, 8)
        self._ops: list[Scenario] = []
        self._num_made = 0

    def make(self) -> list[Scenario]:
        """All operations, until the last request has come and a while has passed."""
        num_after = self._rng.randint(0, 20)
        while self._num_made < self._num_requests or num_after > 0:
            num_after -= self._num_made == self._num_requests
            self._next()
        return self._ops

    def _next(self) -> None:
        rng, live = self._rng, list(self._replay.requests.values())
        kind = rng.random()
        if kind < 0.02:
            self._do(op="stats")
        elif kind < 0.03 or (kind < 0.1 and not live):
            self._do(op="reset")
        elif len(live) < self._most_at_once and self._num_made < self._num_requests and (kind < 0.3 or not live):
            self._do(**self._new())
        elif live:
            request = rng.choice(live)
            if kind < 0.35:
                self._do(op="lookup", id=request.request_id)
            elif request.status is RequestStatus.RUNNING:
                self._go_on(request, kind)
            elif kind > 0.96:
                self._do(op="free", id=request.request_id)  # given up before it ran
            else:
                self._allocate(request)

    def _new(self) -> Scenario:
        rng, number = self._rng, self._num_made
        self._num_made += 1
        op: Scenario = {"op": "new", "id": f"r{number}", "tokens": self._prompts.next_prompt()}
        if salt := rng.choice(SALTS):
            op["salt"] = salt
        if lora := rng.choice(LORAS):
            op["lora"] = lora
        if rng.random() < 0.08:
            op["prompt_logprobs"] = rng.randint(0, 3)
        if rng.random() < 0.08:
            op["skip_read"] = rng.random() < 0.5
        return op

    def _go_on(self, request: Request, kind: float) -> None:
        """The next thing of a running request."""
        rng = self._rng
        if kind > 0.97:
            self._do(op="preempt", id=request.request_id)
        elif request.num_uncomputed_tokens:
            self._allocate(request)
        elif kind > 0.80:
            self._finish(request)
        else:
            count = rng.choice((1, 1, 1, 2, self._block_size))
            self._do(op="append", id=request.request_id, tokens=[rng.randrange(self._prompts.vocab) for _ in range(count)])

    def _allocate(self, request: Request) -> None:
        rng = self._rng
        tokens = rng.choice((None, None, None, rng.randint(1, 3 * self._block_size)))
        op = {"op": "allocate", "id": request.request_id, "lookup": request.status is not RequestStatus.RUNNING, "tokens": tokens}
        if rng.random() < 0.3:
            op["whole"] = True
        if rng.random() < 0.15:
            op["others"] = False
        if rng.random() < 0.1:
            op["lookahead"] = rng.randint(1, 5)
        if self._do(**op)["new"] is None:
            self._make_room()

    def _make_room(self) -> None:
        """What a scheduler may do when there is no room: preempt, let one go, or wait."""
        running = [one for one in self._replay.requests.values() if one.status is RequestStatus.RUNNING]
        kind = self._rng.random()
        if running and kind < 0.5:
            self._do(op="preempt", id=self._rng.choice(running).request_id)
        elif running and kind < 0.8:
            self._finish(self._rng.choice(running))
        elif not running:
            # What does not fit now never will, or another one waits that does.
            self._finish(self._rng.choice(list(self._replay.requests.values())))

    def _finish(self, request: Request) -> None:
        self._prompts.remember(list(request.all_token_ids))
        self._do(op="free", id=request.request_id)

    def _do(self, **op: Any) -> Scenario:
        self._ops.append(op)
        return self._replay.apply(op)
