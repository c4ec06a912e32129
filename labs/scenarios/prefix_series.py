"""PrefixSeries: the scenarios that make, move or break a shared prefix, each with its predictions.

    shared, repeated          what caching is for
    salted                    equal tokens, another identity
    prepended, appended       one token more, in front of what is shared or behind it
    shifted                   k = 1, 2, … tokens in front
    unrelated                 the control
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

from labs import theory
from labs.protocol import Prediction
from labs.salts import salts
from labs.series import Series, SeriesRequest
from labs.workload import SharedPrefixWorkload, TokenIds


class PrefixSeries:
    """Builds series over one workload for a cache with `unit` tokens a block.

    Marker tokens are used up in order, so that no two series of one builder share a prepended or appended token.
    """

    def __init__(self, workload: SharedPrefixWorkload, unit: int, seed: int) -> None:
        self.workload = workload
        self.unit = unit
        self._marks: Iterator[int] = iter(workload.marker_ids)
        self._salts = salts(seed)
        self._num_shared = len(workload.shared_ids)

    def shared(self, count: int) -> Series:
        """Requests that share the system prompt, from a cold cache: the first pays."""
        prompts = self.workload.prompts[:count]
        length = len(prompts[0])
        total = self._predict(theory.shared_prefix_hits, count, self._num_shared, length, self.unit)
        row = f"shared system prompt, {count} requests"
        return self._series(row, prompts, self._reuse(0, length), self._reuse(self._num_shared, length), total)

    def unrelated(self, count: int, sent: Sequence[TokenIds]) -> Series:
        """Prompts that share nothing but a chat template's head with those `sent` before: predicted from the ids."""
        earlier, laws = list(sent), []
        prompts = self.workload.unrelated_ids[:count]
        for prompt in prompts:
            laws.append(self._reuse(theory.longest_match(prompt, earlier), len(prompt)))
            earlier.append(prompt)
        requests = tuple(SeriesRequest(prompt, law) for prompt, law in zip(prompts, laws))
        total = Prediction(sum(law.value for law in laws), "the sum over the controls")
        return Series("unrelated control", requests, total, self._queries(prompts), is_control=True)

    def fresh_salts(self, count: int) -> Series:
        """A salt of its own for each request."""
        prompts = self.workload.prompts[:count]
        length = len(prompts[0])
        miss = self._reuse(0, length)
        total = self._predict(theory.fresh_salt_hits, count, length, self.unit)
        salts = [next(self._salts) for _ in prompts]
        return self._series("fresh salt per request", prompts, miss, miss, total, salts)

    def fixed_salt(self, count: int) -> Series:
        """One new salt for all requests: a cache of its own, cold once."""
        prompts = self.workload.prompts[:count]
        length = len(prompts[0])
        total = self._predict(theory.shared_prefix_hits, count, self._num_shared, length, self.unit)
        first, later = self._reuse(0, length), self._reuse(self._num_shared, length)
        return self._series("one fixed new salt", prompts, first, later, total, [next(self._salts)] * count)

    def unique_prepended(self, count: int) -> Series:
        """One token of its own in front of each request."""
        prompts = [(next(self._marks), *prompt) for prompt in self.workload.prompts[:count]]
        length = len(prompts[0])
        miss = self._reuse(0, length)
        total = self._predict(theory.unique_prepend_hits, count, 1, length - 1, self.unit)
        return self._series("unique token prepended", prompts, miss, miss, total)

    def shared_prepended(self, count: int) -> Series:
        """The same token in front of all requests: another prefix, shared all the same."""
        mark = next(self._marks)
        prompts = [(mark, *prompt) for prompt in self.workload.prompts[:count]]
        length = len(prompts[0])
        total = self._predict(theory.shared_extra_hits, count, 1, self._num_shared, length - 1, self.unit)
        first, later = self._reuse(0, length), self._reuse(self._num_shared + 1, length)
        return self._series("shared token prepended", prompts, first, later, total)

    def unique_appended(self, count: int) -> Series:
        """One token of its own behind the system prompt, which the cache already holds."""
        prompts = [(*self.workload.shared_ids, next(self._marks), *tail) for tail in self.workload.tail_ids[:count]]
        each = self._reuse(self._num_shared, len(prompts[0]))
        # The request that brought the system prompt counts as one more, so all of these are later ones.
        total = self._predict(theory.unique_append_hits, count + 1, 1, self._num_shared, len(prompts[0]) - 1, self.unit)
        return self._series("unique token appended", prompts, each, each, total)

    def shared_appended(self, count: int) -> Series:
        """The same token behind the system prompt for all: it joins the shared part."""
        mark = next(self._marks)
        prompts = [(*self.workload.shared_ids, mark, *tail) for tail in self.workload.tail_ids[:count]]
        length = len(prompts[0])
        first, later = self._reuse(self._num_shared, length), self._reuse(self._num_shared + 1, length)
        total = Prediction(first.value + (count - 1) * later.value, f"first + {count - 1}·later")
        return self._series("shared token appended", prompts, first, later, total)

    def repeated(self) -> Series:
        """The system prompt alone, twice: the last token is computed again, and with it its whole block."""
        prompt = self.workload.shared_ids
        later = self._predict(theory.repeat, len(prompt), self.unit)
        row = f"repeat of {len(prompt):,} tokens"
        return self._series(row, [prompt, prompt], self._reuse(0, len(prompt)), later, later)

    def shifted(self, max_shift: int) -> Series:
        """One prompt behind k = 1 … max_shift tokens of its own, against a cache that holds it unshifted."""
        prompt, marks = self.workload.prompts[0], self.workload.marker_ids
        prompts = [
            (*(marks[(shift + offset) % len(marks)] for offset in range(shift)), *prompt) for shift in range(1, max_shift + 1)
        ]
        # The unshifted prompt and one shifted by k: two requests, whose second must find what the law says.
        values = [theory.unique_prepend_hits(2, shift, len(prompt), self.unit) for shift in range(1, max_shift + 1)]
        laws = [Prediction(value, f"(2 − 1)·{self.unit}·⌊0/{self.unit}⌋ for every k: position 0 differs") for value in values]
        requests = tuple(SeriesRequest(shifted, law) for shifted, law in zip(prompts, laws))
        total = Prediction(sum(values), f"the sum over k = 1…{max_shift}")
        return Series(f"shift by k = 1…{max_shift}", requests, total, self._queries(prompts))

    def _series(
        self,
        row: str,
        prompts: Sequence[TokenIds],
        first: Prediction,
        later: Prediction,
        total: Prediction,
        salts: Sequence[str] | None = None,
    ) -> Series:
        requests = tuple(
            SeriesRequest(prompt, later if index else first, salts[index] if salts else None)
            for index, prompt in enumerate(prompts)
        )
        return Series(row, requests, total, self._queries(prompts))

    def _queries(self, prompts: Sequence[TokenIds]) -> Prediction:
        lengths = {len(prompt) for prompt in prompts}
        if len(lengths) == 1:
            return self._predict(theory.queries, len(prompts), lengths.pop())
        return Prediction(sum(map(len, prompts)), "the sum of all prompts' lengths")

    def _reuse(self, match_tokens: int, prompt_tokens: int) -> Prediction:
        return self._predict(theory.reuse, match_tokens, prompt_tokens, self.unit)

    @staticmethod
    def _predict(law: Callable[..., Any], *args: Any) -> Prediction:
        return Prediction(*theory.predict(law, *args))
