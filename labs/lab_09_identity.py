"""Lab 09: what must be in the key?

Background. A cache finds K/V by a key. Tokens are not all that K/V are computed from: an adapter (LoRA) changes the products
they come from, an image or a given embedding stands in the place of a token, and everything before a block shapes it. What is
left out of the key is served to the wrong request. No error follows, no counter shows it: the hit rate only looks better.

Predicted. Two requests share the K/V of their first m tokens: up to the first other content, or none with another adapter or
salt. The second reuses B·⌊min(m, L−1)/B⌋ of them (B = block or page), with each cache:

    same everything, again             B·⌊(L−1)/B⌋
    another adapter                    0; another name or another path of it alone: 0 as well (SGLang's tree knows the
                                       adapter by its id alone; this engine's has its name and path)
    another salt                       0, though the K/V would be equal
    other embeddings from k on         B·⌊k/B⌋
    another image at o                 B·⌊o/B⌋: what is in front of it is shared
    the same image a little later      the same, though it begins in the same block: its place is in the key too

Then the rule is broken on purpose, a part of the key at a time (EngineConfig's `leave_out_of_key` and `hash_bits`), and the
wrong engine gets the same requests as the right one. It must hit what the other leaves alone: the prediction is made as above,
with that part ignored. Without the parent in a name, equal blocks behind other pasts are one block; without an image's offset, blocks
that hold it at another place are; names of a few bits are equal by accident. With the right key the answer must be that of an
engine without a cache; with the wrong one it changes.

How to read it. `first` are the hits of a scenario's first request, `again` those of its repeat, `names` the first blocks named
as in the scenario it is a variant of. In the tables of wrong keys, `right` and `wrong` are hits, `undue` their difference: K/V
that belong to another request; `changed` counts the tokens of the greedy answer that differ from those without a cache, with
the right key and with the wrong one. A salt changes no K/V: what leaks without it is time (lab 10). Names of a few bits
show what a collision does; how rare it is with all bits is in the findings. This lab counts; it shows no times.

The model computes in float32, so that near ties do not decide. Adapters are random numbers from a seed. The real model reads no
images: on it, theirs are names alone. The simulated target keeps no K/V: it shows the wrong hits, and not the wrong answers.

Sources: vLLM 0.32.0, v1/core/kv_cache_utils.py; SGLang 0.5.23, managers/schedule_batch.py; LoRA, arXiv:2106.09685.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from engine.errors import ConfigError
from engine.kvcache.cache_identity import CacheIdentity, LoRA, MultimodalItem
from labs import theory
from labs.caches import Cache, caches
from labs.chart import Chart, bars_of
from labs.field_check import check_numbers
from labs.length_check import check_length
from labs.outcome import outcome_line
from labs.protocol import Lab, LabReport, LabSession, Measurement, Prediction
from labs.salts import salts
from labs.scenarios.identity_prompts import IdentityPrompts
from labs.scenarios.identity_series import IdentityRequest, IdentityRow, may_reuse, run_rows, send
from labs.scenarios.identity_traps import Collision, ShiftedImage, Trap, TrapResult
from labs.series import prove_cold
from labs.targets.base import Completion, Target

MAX_HASH_BITS = 16  # more would take thousands of prompts to find two of one name
# Numbers of the prompts: whose is whose. The first two are the rows', the others each trap's own.
PLAIN, IMAGES, LORA, EMBEDDINGS, OTHER_EMBEDDINGS, SALT, OTHER_IMAGES, PARENT, OTHER_PARENT, FIRST_OF_BITS = range(10)


@dataclass(frozen=True)
class Config:
    """Sizes of the experiment; in tokens unless said otherwise."""

    prompt_tokens: int = 200
    equal_tokens: int = 100  # embeddings that two requests share, before they differ
    image_offset: int = 72  # where the image begins
    image_tokens: int = 64  # placeholders it fills
    image_shift: int = 4  # how much later the same image comes, in the same block: its place alone tells the two apart
    output_tokens: int = 16  # of the answers compared
    block_size: int = 16  # of the hash cache
    page_sizes: tuple[int, ...] = (1, 16)  # of the radix caches
    hash_bits: int = 8  # of the names that collide
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, {"image_offset": 0, "prompt_tokens": 4, "block_size": 2}, {"hash_bits": MAX_HASH_BITS, "seed": 2**32})
        # One block that differs, one that is equal behind it, and a token that is computed in any case.
        if self.prompt_tokens <= 2 * self.block_size:
            if self.block_size > Config.block_size:
                accepted = f"at most {(self.prompt_tokens - 1) // 2}, with these prompt_tokens: two blocks and a token"
                raise ConfigError("block_size", self.block_size, accepted)
            raise ConfigError("prompt_tokens", self.prompt_tokens, f"at least {2 * self.block_size + 1}: two blocks and a token")
        if self.equal_tokens >= self.prompt_tokens:
            raise ConfigError("equal_tokens", self.equal_tokens, f"at most {self.prompt_tokens - 1}, with these prompt_tokens")
        image = {name: getattr(self, name) for name in ("image_tokens", "image_offset", "image_shift")}
        check_length(self, self.prompt_tokens, "with these prompt_tokens", **image)
        self._check_shift()

    def _check_shift(self) -> None:
        """In another block the image's presence would tell, and a key without its place would pass."""
        most = self.block_size - 1 - self.image_offset % self.block_size
        if not most:
            accepted = f"another place than the last of a block of {self.block_size}: the image must begin later in that block"
            raise ConfigError("image_offset", self.image_offset, accepted)
        if self.image_shift > most:
            accepted = f"at most {most}, with this image_offset and block_size: the image must begin in the same block"
            raise ConfigError("image_shift", self.image_shift, accepted)

    @property
    def adapter_paths(self) -> tuple[str, str]:
        return f"seeded:{2 * self.seed + 1}", f"seeded:{2 * self.seed + 2}"


class _Run:
    """One run of the lab: its prompts, its traps, and what was found."""

    def __init__(self, session: LabSession, config: Config) -> None:
        self.session, self.config = session, config
        self.is_real = session.open_target.kind != "sim"
        self.caches = caches(config.block_size, config.page_sizes)
        probe = self._open({"num_gpu_blocks": 2})
        _check_length(config, probe)
        self.prompts = IdentityPrompts(
            probe.tokenizer(), probe.info.vocab_size, config.prompt_tokens, config.block_size, config.seed
        )
        self.embed = probe.engine.runner.token_embeddings  # the model's, which all targets share
        self._salts = salts(config.seed)
        self.rows = self._make_rows()
        self.traps = self._make_traps()
        probe.close()

    def _open(self, fields: dict[str, Any]) -> Target:
        return self.session.open_target(dtype="float32", **fields)

    def _request(self, number: int, **identity: Any) -> IdentityRequest:
        return IdentityRequest(self.prompts.prompt(number), CacheIdentity(**identity))

    def _embedded(self, token_ids: Sequence[int]) -> IdentityRequest:
        """A prompt of embeddings: its token ids say nothing."""
        return IdentityRequest((0,) * len(token_ids), CacheIdentity(prompt_embeds=tuple(self.embed(token_ids))))

    def _make_rows(self) -> list[IdentityRow]:
        config, (path, other_path) = self.config, self.config.adapter_paths
        image, other_image = (MultimodalItem(name, config.image_offset, config.image_tokens) for name in ("image-a", "image-b"))
        later = image._replace(offset=config.image_offset + config.image_shift)
        prompt, k = self.prompts.prompt(PLAIN), config.equal_tokens
        plain = self._request(PLAIN)
        adapted = self._request(PLAIN, lora=LoRA("adapter-a", path))
        salted = self._request(PLAIN, cache_salt=next(self._salts))
        embedded = self._embedded(prompt)
        # Behind the first k each embedding is that of another token: the one with the next id.
        other = self._embedded((*prompt[:k], *(token_id + 1 for token_id in prompt[k:])))
        pictured = self._request(IMAGES, mm_items=(image,))
        names_only = self.is_real
        return [
            IdentityRow("tokens alone", plain),
            IdentityRow("an adapter", adapted, plain),
            IdentityRow("its path under another name", self._request(PLAIN, lora=LoRA("adapter-b", path)), adapted),
            IdentityRow("its name for another path", self._request(PLAIN, lora=LoRA("adapter-a", other_path)), adapted),
            IdentityRow("a salt", salted, plain),
            IdentityRow("another salt", self._request(PLAIN, cache_salt=next(self._salts)), salted),
            IdentityRow("given embeddings", embedded, plain),
            IdentityRow(f"other embeddings from {k} on", other, embedded),
            IdentityRow(f"an image at {image.offset}", pictured, self._request(IMAGES), names_only),
            IdentityRow("another image there", self._request(IMAGES, mm_items=(other_image,)), pictured, names_only),
            IdentityRow(f"the first image at {later.offset}", self._request(IMAGES, mm_items=(later,)), pictured, names_only),
        ]

    def _make_traps(self) -> list[Trap]:
        loras = [LoRA(f"adapter-{letter}", path) for letter, path in zip("ab", self.config.adapter_paths)]
        embedded = [self._embedded(self.prompts.prompt(number)) for number in (EMBEDDINGS, OTHER_EMBEDDINGS)]
        images = [
            (MultimodalItem(name, self.config.image_offset, self.config.image_tokens),) for name in ("image-a", "image-b")
        ]
        pairs = {
            "lora": [self._request(LORA, lora=lora) for lora in loras],
            "embeddings": embedded,
            "salt": [self._request(SALT, cache_salt=next(self._salts)) for _ in range(2)],
            "images": [self._request(OTHER_IMAGES, mm_items=items) for items in images],
        }
        if self.is_real:
            del pairs["images"]
        traps = [
            Trap(f"without {part}", {"leave_out_of_key": part}, (first,), last, part, changes_answer=part != "salt")
            for part, (first, last) in pairs.items()
        ]
        if not self.is_real:
            traps.append(self._shift_trap(images[0][0]))
        return [*traps, self._parent_trap(), self._collision()]

    def _shift_trap(self, image: MultimodalItem) -> ShiftedImage:
        """An image, then the same a little later in the same block."""
        later = image._replace(offset=image.offset + self.config.image_shift)
        first, last = (self._request(OTHER_IMAGES, mm_items=(item,)) for item in (image, later))
        return ShiftedImage("without image offsets", {"leave_out_of_key": "image_offsets"}, (first,), last)

    def _parent_trap(self) -> Trap:
        """A prompt behind another's first block, then the prompt alone: the same blocks, behind another past."""
        last, head = self._request(OTHER_PARENT), self.prompts.prompt(PARENT)[: self.config.block_size]
        return Trap("without parent", {"leave_out_of_key": "parent"}, (IdentityRequest((*head, *last.token_ids)),), last)

    def _collision(self) -> Collision:
        """The first two prompts, by number, whose first blocks get one name."""
        bits = self.config.hash_bits
        # SHA-256 starts its names alike in every engine: what collides here collides there.
        fields = {"hash_bits": bits, "prefix_caching_hash_algo": "sha256"}
        target = self._open({**self.caches[0].engine_fields, **fields, "num_gpu_blocks": 2})
        seen: dict[str, IdentityRequest] = {}
        number = FIRST_OF_BITS
        while True:  # ends: there are 2^bits names
            request = self._request(number)
            twin = seen.setdefault(target.block_hashes(request.token_ids)[0], request)
            # Names of people repeat in the end; only other tokens make it a collision.
            if twin.token_ids != request.token_ids:
                break
            number += 1
        target.close()
        return Collision(f"names of {bits} bits", fields, (twin,), request, num_tried=number - FIRST_OF_BITS + 1)

    def traps_of(self, cache: Cache) -> list[Trap]:
        """Those that the cache can be caught in: a tree has no names, and its paths hold the past and each image's place."""
        return [trap for trap in self.traps if cache.is_hash or trap.ignored is not None]

    def num_requests(self) -> int:
        traps = [trap for cache in self.caches for trap in self.traps_of(cache)]
        num_rows = sum(2 for row in self.rows if not row.names_only) * len(self.caches)
        return self.is_real * len(self.traps) + num_rows + 2 * sum(len(trap.before) + 1 for trap in traps)

    def answers(self) -> dict[str, Completion]:
        """Each trap's last request without a cache, by the trap's row; nothing where no K/V are kept."""
        if not self.is_real:
            return {}
        target = self._open({"enable_prefix_caching": False, "num_gpu_blocks": self._num_blocks(self.caches[0], 1)})
        try:
            return {trap.row: self._answer(target, trap.last, f"without a cache: {trap.row}") for trap in self.traps}
        finally:
            target.close()

    def ask_right(self, cache: Cache) -> tuple[list[Measurement], dict[str, tuple[Prediction, Completion]], bool]:
        """The rows, and the traps, under the right key: measurements, what each trap's last request found, cold or not."""
        target = self._open({**cache.engine_fields, "num_gpu_blocks": self._num_blocks(cache, 3 * len(self.rows))})
        try:
            cold = prove_cold(self.session, target, self.prompts.canary_ids)
            measurements = run_rows(self.session, target, cache, self.rows)
            cold = prove_cold(self.session, target, self.prompts.canary_ids) and cold
            found, earlier = {}, []
            for trap in self.traps_of(cache):
                for request in trap.before:
                    send(self.session, target, request, f"{cache.title}: right key")
                earlier += trap.before
                law = may_reuse(trap.last, earlier, cache.unit)
                found[trap.row] = law, self._answer(target, trap.last, f"{cache.title}: right key")
                earlier.append(trap.last)
        finally:
            target.close()
        return measurements, found, cold

    def ask_wrong(self, cache: Cache, trap: Trap) -> tuple[Completion, bool]:
        """The trap under its wrong key, in an engine of its own: what its last request found, and whether it was empty before."""
        fields = {**cache.engine_fields, **trap.engine_fields, "num_gpu_blocks": self._num_blocks(cache, len(trap.before) + 1)}
        target = self._open(fields)
        try:
            before = [send(self.session, target, request, f"{cache.title}: {trap.row}") for request in trap.before]
            last = self._answer(target, trap.last, f"{cache.title}: {trap.row}")
            return last, not any(completion.num_cached_tokens for completion in before)
        finally:
            target.close()

    def _answer(self, target: Target, request: IdentityRequest, label: str) -> Completion:
        return send(self.session, target, request, label, self.config.output_tokens if self.is_real else 1)

    def _num_blocks(self, cache: Cache, num_requests: int) -> int:
        longest = self.config.block_size + self.config.prompt_tokens + self.config.output_tokens
        return cache.blocks_for(longest * num_requests, num_requests)


def run(session: LabSession, config: Config) -> LabReport:
    """Ask every cache under the right key, then set each wrong key beside it."""
    work = _Run(session, config)
    session.expect(work.num_requests())
    answers = work.answers()
    measurements: list[Measurement] = []
    results: dict[str, list[TrapResult]] = {}
    cold = True
    for cache in work.caches:
        found, right, started_cold = work.ask_right(cache)
        measurements += found
        cold = cold and started_cold
        results[cache.title] = []
        for trap in work.traps_of(cache):
            right_law, completion = right[trap.row]
            wrong_law = trap.wrong_hits(cache.unit)
            wrong, started_cold = work.ask_wrong(cache, trap)
            cold = cold and started_cold
            result = TrapResult(trap, right_law, wrong_law, completion, wrong, answers.get(trap.row))
            found = result.measurements(cache)
            session.record(*found)
            measurements += found
            results[cache.title].append(result)
    return LabReport(
        tuple(measurements),
        "cold" if cold else "uncontrolled",
        tuple(_findings(work, results)),
        _conclusion(measurements),
        {"prompts": work.prompts.digest(FIRST_OF_BITS)},
        (_chart(results),),
    )


def _check_length(config: Config, probe: Target) -> None:
    # One prompt has a block more.
    most, context = probe.info.max_model_len - config.block_size, "with this model and block_size"
    check_length(config, most, context, prompt_tokens=config.prompt_tokens, output_tokens=config.output_tokens)


def _findings(work: _Run, results: dict[str, list[TrapResult]]) -> list[str]:
    findings = []
    title, first = next(iter(results.items()))
    for result in first:
        trap = result.trap
        taken, due = f"{result.undue:,} tokens of K/V from another request", result.wrong_law.value - result.right_law.value
        taken = f"{taken}, no error" if result.undue == due else f"NOT as predicted: {taken}, {due:,} predicted"
        findings.append(f"{title}, {trap.row}: {taken}{_answer_told(result)}")
    trap = next(result.trap for result in first if isinstance(result.trap, Collision))
    bits = work.config.hash_bits
    chance = min(1.0, theory.collision_probability(trap.num_tried, bits))
    findings.append(
        f"two of {trap.num_tried} first blocks got one name of {bits} bits (a chance of {chance:.0%} at most, by the law); with "
        f"all 256, a billion blocks have one of {theory.collision_probability(1e9, 256):.1e}"
    )
    if work.is_real:
        findings.append("images: the model reads none, so theirs are names alone; --target sim serves them and counts hits")
    else:
        findings.append("the simulated target keeps no K/V: wrong hits are counted, wrong answers are seen with --target engine")
    return findings


def _answer_told(result: TrapResult) -> str:
    """What the wrong key makes of the answer, in counts: its words may be another request's."""
    if result.answer is None:
        return ""
    right, wrong = result.answer.output_token_ids, result.wrong.output_token_ids
    differing = [at for at, (one, other) in enumerate(zip(right, wrong), start=1) if one != other]
    if not differing:
        return f"; the answer stays, all {len(right)} tokens"
    return f"; {len(differing)} of {len(right)} tokens of the answer change, the first is number {differing[0]}"


def _conclusion(measurements: Sequence[Measurement]) -> str:
    met = "Every request found what its identity allows, and every wrong key what it should not."
    return (
        f"{outcome_line(measurements, met)} A wrong key is silent: more hits, faster answers, of another adapter, image or "
        "prompt. In production: whatever changes K/V belongs in the key, from the position on where it acts: an adapter's name "
        "and the path of its weights, images and embeddings by a hash of their content and with their place, never by a file "
        "name. Weights replaced under the same name and path are not seen: give them a new path, or empty the cache. (SGLang's "
        "key has an adapter's id alone, no path: there they need a new id.) A salt for each tenant is in the key although it "
        "changes nothing. What is in the key without need costs hits: the same weights under two names share nothing. Names "
        "should have all their bits, of a hash that nobody can steer where tenants do not trust each other. And every tier that "
        "finds K/V by a name, a router or an outer store, needs the same key."
    )


def _chart(results: dict[str, list[TrapResult]]) -> Chart:
    """Hits of the last request under both keys."""
    groups: dict[str, list[tuple[str, float]]] = {"right key": [], "wrong key": []}
    for title, found in results.items():
        for result in found:
            row = f"{title}: {result.trap.row}"
            groups["right key"].append((row, float(result.right.num_cached_tokens or 0)))
            groups["wrong key"].append((row, float(result.wrong.num_cached_tokens or 0)))
    return bars_of("What is left out of the key is found by the wrong request", groups)


LAB = Lab(
    number=9,
    name="identity",
    question="What must be in the key?",
    config_type=Config,
    quick=Config(prompt_tokens=96, equal_tokens=40, image_offset=40, image_tokens=32, output_tokens=8, page_sizes=(1,)),
    run=run,
)
