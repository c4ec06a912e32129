"""PrefixSeries: the scenarios that make, move or break a shared prefix, each with its predictions.

    shared, repeated          what caching is for
    salted                    equal tokens, another identity
    prepended, appended       one token more, in front of what is shared or behind it
    shifted                   k = 1, 2, … tokens in front
    unrelated                 the control
"""

from __future__ import annotations

from typing import Iterator, Sequence

from labs import theory
from labs.cache_laws import CacheLaws
from labs.protocol import Prediction
from labs.salts import salts
from labs.series import Series, SeriesRequest
from labs.workload import SharedPrefixWorkload, TokenIds


class PrefixSeries:
    """Builds series over one workload for a cache that follows `laws`.

    Marker tokens are used up in order, so that no two series of one builder share a prepended or appended token.
    """

    def __init__(self, workload: SharedPrefixWorkload, laws: CacheLaws, seed: int) -> None:
        self.workload = workload
        self.laws = laws
        self._marks: Iterator[int] = iter(workload.marker_ids)
        self._salts = salts(seed)
        self._num_shared = len(workload.shared_ids)

    def shared(self, count: int) -> Series:
        """Requests that share the system prompt, from a cold cache: the first pays."""
        prompts = self.workload.prompts[:count]
        length = len(prompts[0])
        each = _each(count, self._reuse(0, length), self._reuse(self._num_shared, length))
        total = self.laws.total(each, theory.shared_prefix_hits, count, self._num_shared, length)
        return self._series(f"shared system prompt, {count} requests", prompts, each, total)

    def unrelated(self, count: int, sent: Sequence[TokenIds]) -> Series:
        """Prompts that share nothing but a chat template's head with those `sent` before: predicted from the ids."""
        earlier, laws = list(sent), []
        prompts = self.workload.unrelated_ids[:count]
        for prompt in prompts:
            laws.append(self._reuse(theory.longest_match(prompt, earlier), len(prompt)))
            earlier.append(prompt)
        requests = tuple(SeriesRequest(prompt, law) for prompt, law in zip(prompts, laws))
        total = Prediction(sum(law.value for law in laws), "the sum over the controls")
        front_hits = self.laws.front_hits(len(prompts[0]))
        return Series("unrelated control", requests, total, self._queries(prompts), is_control=True, front_hits=front_hits)

    def fresh_salts(self, count: int) -> Series:
        """A salt of its own for each request."""
        prompts = self.workload.prompts[:count]
        length = len(prompts[0])
        each = [self.laws.predict_new(length)] * count
        total = self.laws.predict(theory.fresh_salt_hits, count, length)
        salts = [next(self._salts) for _ in prompts]
        return self._series("fresh salt per request", prompts, each, total, salts)

    def fixed_salt(self, count: int) -> Series:
        """One new salt for all requests: a cache of its own, cold once."""
        prompts = self.workload.prompts[:count]
        length = len(prompts[0])
        each = _each(count, self.laws.predict_new(length), self._reuse(self._num_shared, length))
        total = self.laws.total(each, theory.shared_prefix_hits, count, self._num_shared, length)
        return self._series("one fixed new salt", prompts, each, total, [next(self._salts)] * count)

    def unique_prepended(self, count: int) -> Series:
        """One token of its own in front of each request."""
        prompts = [(next(self._marks), *prompt) for prompt in self.workload.prompts[:count]]
        length = len(prompts[0])
        each = [self._reuse(0, length)] * count
        total = self.laws.total(each, theory.unique_prepend_hits, count, 1, length - 1)
        return self._series("unique token prepended", prompts, each, total)

    def shared_prepended(self, count: int) -> Series:
        """The same token in front of all requests: another prefix, shared all the same."""
        mark = next(self._marks)
        prompts = [(mark, *prompt) for prompt in self.workload.prompts[:count]]
        length = len(prompts[0])
        each = _each(count, self._reuse(0, length), self._reuse(self._num_shared + 1, length))
        total = self.laws.total(each, theory.shared_extra_hits, count, 1, self._num_shared, length - 1)
        return self._series("shared token prepended", prompts, each, total)

    def unique_appended(self, count: int) -> Series:
        """One token of its own behind the system prompt, which the cache already holds."""
        prompts = [(*self.workload.shared_ids, next(self._marks), *tail) for tail in self.workload.tail_ids[:count]]
        each = [self._reuse(self._num_shared, len(prompts[0]))] * count
        # The request that brought the system prompt counts as one more, so all of these are later ones.
        total = self.laws.total(each, theory.unique_append_hits, count + 1, 1, self._num_shared, len(prompts[0]) - 1)
        return self._series("unique token appended", prompts, each, total)

    def shared_appended(self, count: int) -> Series:
        """The same token behind the system prompt for all: it joins the shared part."""
        mark = next(self._marks)
        prompts = [(*self.workload.shared_ids, mark, *tail) for tail in self.workload.tail_ids[:count]]
        length = len(prompts[0])
        each = _each(count, self._reuse(self._num_shared, length), self._reuse(self._num_shared + 1, length))
        total = Prediction(sum(law.value for law in each), f"first + {count - 1}·later")
        return self._series("shared token appended", prompts, each, total)

    def repeated(self) -> Series:
        """The system prompt alone, twice: the last token is computed again, and with it its whole block."""
        prompt = self.workload.shared_ids
        each = _each(2, self._reuse(0, len(prompt)), self.laws.predict(theory.repeat, len(prompt)))
        total = self.laws.total(each, theory.repeat, len(prompt))
        return self._series(f"repeat of {len(prompt):,} tokens", [prompt, prompt], each, total)

    def shifted(self, max_shift: int) -> Series:
        """One prompt behind k = 1 … max_shift tokens of its own, against a cache that holds it unshifted."""
        prompt, marks = self.workload.prompts[0], self.workload.marker_ids
        prompts = [
            (*(marks[(shift + offset) % len(marks)] for offset in range(shift)), *prompt) for shift in range(1, max_shift + 1)
        ]
        # The unshifted prompt and one shifted by k: two requests, whose second must find what the law says.
        each = [self._reuse(0, len(one)) for one in prompts]
        laws = [self.laws.total([law], theory.unique_prepend_hits, 2, shift, len(prompt)) for shift, law in enumerate(each, start=1)]
        text = f"(2 − 1)·{self.laws.unit}·⌊0/{self.laws.unit}⌋ for every k: position 0 differs"
        laws = [Prediction(law.value, text if self.laws.is_plain else law.law) for law in laws]
        total = Prediction(sum(law.value for law in laws), f"the sum over k = 1…{max_shift}")
        return self._series(f"shift by k = 1…{max_shift}", prompts, laws, total)

    def _series(
        self,
        row: str,
        prompts: Sequence[TokenIds],
        each: Sequence[Prediction],
        total: Prediction,
        salts: Sequence[str] | None = None,
    ) -> Series:
        requests = tuple(
            SeriesRequest(prompt, law, salts[index] if salts else None)
            for index, (prompt, law) in enumerate(zip(prompts, each, strict=True))
        )
        return Series(row, requests, total, self._queries(prompts), front_hits=self.laws.front_hits(len(prompts[0])))

    def _queries(self, prompts: Sequence[TokenIds]) -> Prediction:
        lengths = {len(prompt) for prompt in prompts}
        if len(lengths) == 1:
            return self.laws.predict(theory.queries, len(prompts), lengths.pop())
        num_front = len(prompts) * self.laws.num_front
        return Prediction(sum(map(len, prompts)) + num_front, "the sum of all prompts' lengths")

    def _reuse(self, match_tokens: int, prompt_tokens: int) -> Prediction:
        return self.laws.predict(theory.reuse, match_tokens, prompt_tokens)


def _each(count: int, first: Prediction, later: Prediction) -> list[Prediction]:
    """What each of `count` requests finds, of which the first pays."""
    return [first, *[later] * (count - 1)]
