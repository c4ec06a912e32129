"""InvalidationSeries: one cache, asked what skips it, what empties it, and what new weights find in it.

    skips     prompt_logprobs, a request told not to read, another salt, each with a plain request behind it
    resets    while a request holds blocks, and when none does
    weights   an update under a warm cache, beside a fresh engine that has the new weights from the start

A server is asked what a client can ask: prompt_logprobs where it takes them, salts, and a reset where it has one.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

from engine.kvcache.kv_events import AllBlocksCleared
from engine.request import SamplingParams
from labs import theory
from labs.caches import Cache
from labs.protocol import LabSession, Measurement, Prediction
from labs.targets.base import Target
from labs.witnesses import NOT_JUDGED, Doubt, disagreements, doubt_of_traffic
from labs.workload import TokenIds

SKIPS, EMPTIES, UPDATE = "what skips it", "what empties it", "new weights"
NUM_REQUESTS = 7 + 4 + 5  # of one cache: skips, resets, and weights
NUM_SIMULATED_REQUESTS = 7 + 4 + 4


class InvalidationSeries:
    """Asks one cache, starting cold; `measurements` keeps what it showed.

    prompt      the one prompt of all requests
    salt        for requests that must not share with the others
    num_tokens  generated, where outputs are compared
    """

    def __init__(
        self, session: LabSession, target: Target, cache: Cache, prompt: TokenIds, salt: str, num_tokens: int
    ) -> None:
        self.session, self.target, self.cache = session, target, cache
        self.prompt, self.num_tokens, self._salt = prompt, num_tokens, salt
        self.measurements: list[Measurement] = []
        self.doubts: list[Doubt] = []
        self._repeat = cache.laws.predict(theory.repeat, len(prompt))
        self._miss = cache.laws.predict(theory.reuse, 0, len(prompt))

    def ask_skips(self) -> None:
        """Requests that do not read, plain ones behind them, and a salt."""
        nothing, all_tokens = (Prediction(*theory.predict(theory.queries, count, len(self.prompt))) for count in (0, 1))
        for row, law, queries, send in (
            ("prompt_logprobs, cold cache", self._miss, nothing, self._with_logprobs),
            ("plain, behind it", self._repeat, all_tokens, self._plain),
            ("prompt_logprobs, warm cache", self._miss, nothing, self._with_logprobs),
            ("told not to read", self._miss, nothing, self._not_reading),
            ("plain, behind both", self._repeat, all_tokens, self._plain),
            ("another salt", self._miss, all_tokens, self._salted),
            ("that salt again", self._repeat, all_tokens, self._salted),
        ):
            self.target.counters()
            self._hits(SKIPS, row, law, send, key=row in ("plain, behind it", "prompt_logprobs, warm cache"))
            looked_up = self.target.counters().queries
            self._measure(SKIPS, row, "queries", "tokens", looked_up, queries, key="prompt_logprobs" in row)

    def ask_served_skips(self, skips_are_counted: bool | None) -> None:
        """The same of a server: one after the other, each by its reply and by the server's counters.

        skips_are_counted  whether a request with prompt_logprobs counts as looked up; None: it takes no such requests
        """
        new = self.cache.laws.predict_new(len(self.prompt))
        rows: list[tuple[str, Prediction, bool, dict[str, Any]]] = [("plain, cold cache", self._miss, True, {})]
        if skips_are_counted is not None:
            nothing = Prediction(*theory.predict(theory.reuse, 0, len(self.prompt), self.cache.unit))
            logprobs = {"prompt_logprobs": True}
            rows = [
                ("prompt_logprobs, cold cache", nothing, skips_are_counted, logprobs),
                ("plain, behind it", self._repeat, True, {}),
                ("prompt_logprobs, warm cache", nothing, skips_are_counted, logprobs),
            ]
        rows += [
            ("plain, again", self._repeat, True, {}),
            ("another salt", new, True, {"cache_salt": self._salt}),
            ("that salt again", self._repeat, True, {"cache_salt": self._salt}),
        ]
        self.session.expect(len(rows))
        for row, law, is_counted, fields in rows:
            self._ask_served(SKIPS, row, law, is_counted, key="prompt_logprobs" in row, **fields)

    def ask_served_reset(self) -> None:
        """A reset when none of the lab's requests is running, and what it leaves; nothing where other ids took its place."""
        self.target.reset()
        outcome = self.target.last_reset
        if outcome == "renamed":
            return
        law = Prediction(*theory.predict(theory.resets_accepted, 0))
        self._measure(EMPTIES, "reset, nothing is running", "accepted", "resets", int(outcome == "reset"), law, key=True)
        nothing = self.cache.laws.predict_new(len(self.prompt))
        self.session.expect(2)
        self._ask_served(EMPTIES, "plain, after that", nothing, True, key=True)
        self._ask_served(EMPTIES, "salted, after that", nothing, True, cache_salt=self._salt)

    def _ask_served(self, part: str, row: str, law: Prediction, is_counted: bool, *, key: bool = False, **fields: Any) -> None:
        """One request by all of its server's witnesses; what is unknown is left out."""
        self.target.counters()
        completion = self.target.complete(self.prompt, **fields)
        self.session.progress(f"{self.cache.title}: {row}")
        counted = self.target.counters()
        if completion.num_cached_tokens is not None:
            self._measure(part, row, "hits", "tokens", completion.num_cached_tokens, law, key=key)
        if counted.growth is None:
            return
        num_queries, num_hits = counted.growth
        length = int(self.cache.laws.predict(theory.queries, 1, len(self.prompt)).value)
        # Of a request that is not to be looked up, all of its tokens or none: what else was counted is somebody else's.
        if num_queries > length or not (is_counted or num_queries in (0, length)):
            self._measure(part, row, "queries", "tokens", num_queries, None, note=NOT_JUDGED)
            self.doubts.append(doubt_of_traffic(f"{self.cache.title}: {row}", num_queries, length if is_counted else 0))
            return
        due = self.cache.laws.predict(theory.queries, int(is_counted), len(self.prompt))
        if completion.evidence is not None and completion.evidence.usage is not None:
            self._measure(part, row, "counted", "tokens", num_hits, law)
        self._measure(part, row, "queries", "tokens", num_queries, due, key=key)
        self.doubts += disagreements(f"{self.cache.title}: {row}", [completion])

    def ask_resets(self) -> None:
        """Resets with and without a request that holds blocks; the cache is warm, for two salts, when this begins."""
        engine = self.target.engine
        request_id = engine.add_request(self.prompt, SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True))
        engine.step()
        self.session.progress(f"{self.cache.title}: a request that holds blocks")
        engine.take_kv_events()
        # Asked of the manager: the engine would log a warning about what is done on purpose here.
        self._count_reset("reset, a request is running", engine.manager.reset_prefix_cache(), 1)
        engine.abort_request(request_id)
        self._hits(EMPTIES, "plain, after it", self._repeat, self._plain)
        engine.take_kv_events()
        self._count_reset("reset, nothing is running", self.target.reset(), 0)
        self._hits(EMPTIES, "plain, after that", self._miss, self._plain, key=True)
        self._hits(EMPTIES, "salted, after that", self._miss, self._salted)

    def ask_weights(self, updated: Any, open_fresh: Callable[[], Target]) -> None:
        """New weights under a warm cache, then after a reset, beside a fresh engine that has them from the start.

        updated     a LoadedModel of the target's shape
        open_fresh  another target like this one, with the old weights and an empty cache
        """
        target = self.target
        _, old = self._outputs("old weights, cold")
        warm_hits, warm = self._outputs("old weights, warm")
        fresh = self._fresh_outputs(updated, open_fresh)
        target.engine.runner.update_weights(updated)
        stale_hits, stale = self._outputs("new weights, no reset")
        target.reset()
        reset_hits, after_reset = self._outputs("new weights, after a reset")
        # Cold and warm multiply other shapes: only float32 keeps a near tie from falling the other way.
        is_exact = target.info.dtype == "float32"
        self._compare("old weights, warm", warm_hits, self._repeat, _num_different(warm, old), 0 if is_exact else None)
        num_stale = int(self._repeat.value)
        self._compare("new weights, no reset", stale_hits, self._repeat, _num_different(stale, fresh), num_stale)
        self._compare("new weights, after a reset", reset_hits, self._miss, _num_different(after_reset, fresh), 0)
        self._measure(UPDATE, "old against new weights", "wrong", "tokens", _num_different(old, fresh), None)

    def ask_hits_alone(self) -> None:
        """What is left of it where nothing is computed: the cache cannot know that weights changed."""
        note = "no weights and no K/V here: nothing was changed, and a cache would count the same hits if it had been"
        self._hits(UPDATE, "old weights, cold", self._miss, self._plain)
        self._hits(UPDATE, "old weights, warm", self._repeat, self._plain)
        self._hits(UPDATE, "new weights, no reset", self._repeat, self._plain, note=note, key=True)
        self.target.reset()
        self._hits(UPDATE, "new weights, after a reset", self._miss, self._plain)

    def _measure(self, part: str, row: str, name: str, unit: str, value: int, law: Prediction | None, **more: Any) -> None:
        one = Measurement(name, unit, (value,), f"{self.cache.title}: {part}", row, law, **more)
        self.measurements.append(one)
        self.session.record(one)

    def _hits(self, part: str, row: str, law: Prediction, send: Callable[[], int | None], **more: Any) -> None:
        found = send()
        self.session.progress(f"{self.cache.title}: {row}")
        self._measure(part, row, "hits", "tokens", found or 0, law, **more)

    def _compare(self, row: str, hits: int, hits_law: Prediction, num_wrong: int, num_stale: int | None) -> None:
        """Hits, and output tokens that are wrong; num_stale: tokens of old K/V, None where outputs are not judged."""
        law = None
        if num_stale is not None:
            least, text = theory.predict(theory.fewest_wrong_outputs, num_stale, self.num_tokens)
            law = Prediction(least, text, least, self.num_tokens) if least else Prediction(least, text)
        self._measure(UPDATE, row, "hits", "tokens", hits, hits_law, key=bool(num_stale))
        self._measure(UPDATE, row, "wrong", "tokens", num_wrong, law, key=bool(num_stale))

    def _count_reset(self, row: str, accepted: bool, num_holders: int) -> None:
        """An answer to a reset, and whether followers of the KV events were told that all is gone."""
        law = Prediction(*theory.predict(theory.resets_accepted, num_holders))
        cleared = sum(isinstance(event, AllBlocksCleared) for event in self.target.engine.take_kv_events())
        self._measure(EMPTIES, row, "accepted", "resets", int(accepted), law, key=True)
        self._measure(EMPTIES, row, "cleared", "events", cleared, law)

    def _plain(self) -> int | None:
        return self.target.complete(self.prompt).num_cached_tokens

    def _salted(self) -> int | None:
        return self.target.complete(self.prompt, cache_salt=self._salt).num_cached_tokens

    def _with_logprobs(self) -> int | None:
        return self.target.complete(self.prompt, prompt_logprobs=True).num_cached_tokens

    def _not_reading(self) -> int:
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, skip_reading_prefix_cache=True)
        return self.target.engine.generate([self.prompt], params)[0].num_cached_tokens

    def _outputs(self, label: str) -> tuple[int, tuple[int, ...]]:
        """Tokens found, and the greedy output."""
        completion = self.target.complete(self.prompt, max_tokens=self.num_tokens)
        self.session.progress(f"{self.cache.title}: {label}")
        return completion.num_cached_tokens or 0, completion.output_token_ids

    def _fresh_outputs(self, updated: Any, open_fresh: Callable[[], Target]) -> tuple[int, ...]:
        target = open_fresh()
        try:
            target.engine.runner.update_weights(updated)
            output = target.complete(self.prompt, max_tokens=self.num_tokens).output_token_ids
        finally:
            target.close()
        self.session.progress(f"{self.cache.title}: new weights, fresh engine")
        return output


def _num_different(output: Sequence[int], other: Sequence[int]) -> int:
    return sum(one != another for one, another in zip(output, other, strict=True))
