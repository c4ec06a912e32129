"""MatchSweep: matches of every remainder of a unit, whose mean loss and fitted unit are exact.

    base     0 ────────────────────────────────────────────── 4·U
    prompt   0 ─── q·U ───── r ┤ one token of its own            match m = q·U + r, for each r from 0 to U − 1

Each prompt finds U·⌊m/U⌋ = q·U of its m tokens and loses r. Over all remainders the mean of r is (U − 1)/2, whatever q.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Sequence

from labs import theory
from labs.caches import Cache
from labs.chart import Chart, ChartSeries
from labs.counted_request import send_counted
from labs.protocol import LabSession, Measurement, Prediction
from labs.series import prove_cold
from labs.witnesses import counted_beside
from labs.workload import SharedPrefixWorkload, TokenIds

MIN_SWEEP = 16  # matches per unit, at least


@dataclass(frozen=True)
class MatchSweep:
    """Beginnings of one cached prompt, over all remainders of a unit; each goes on with a token of its own."""

    cache: Cache
    base: TokenIds
    prompts: tuple[TokenIds, ...]
    matches: tuple[int, ...]  # tokens of each prompt that the base begins with
    canary_ids: TokenIds

    @classmethod
    def of(cls, cache: Cache, vocab_size: int, seed: int) -> MatchSweep:
        """As many matches of each remainder as make MIN_SWEEP in all, behind random numbers of whole units."""
        unit, rng = cache.unit, random.Random(f"{seed} {cache.title}")
        rounds = -(-MIN_SWEEP // unit)
        num_multiples = max(4, rounds)
        workload = SharedPrefixWorkload.from_token_ids(vocab_size, seed, num_multiples * unit, 1, 1)
        matches = []
        for remainder in range(unit):
            multiples = rng.sample(range(num_multiples), rounds)
            if remainder == unit - 1 and 1 not in multiples:
                multiples[0] = 1  # a match of 2·unit − 1 tokens: with it a single unit explains all hits
            matches += [multiple * unit + remainder for multiple in multiples]
        rng.shuffle(matches)
        base = workload.prompts[0]
        prompts = tuple((*base[:match], (base[match] + 1) % vocab_size) for match in matches)
        # An empty match leaves one token that begins a prompt: the canary must not begin with it.
        canary = workload.canary_ids
        if canary[0] == (base[0] + 1) % vocab_size:
            canary = ((canary[0] + 1) % vocab_size, *canary[1:])
        return cls(cache, base, prompts, tuple(matches), canary)

    @property
    def group(self) -> str:
        kind = "hash cache" if self.cache.is_hash else "radix cache"
        return f"all remainders, {kind if self.cache.engine_fields else self.cache.title}"

    @property
    def row(self) -> str:
        return f"{'block' if self.cache.is_hash else 'page'} {self.cache.unit}"


def run_match_sweep(session: LabSession, sweep: MatchSweep, named_prompt: TokenIds) -> tuple[list[Measurement], bool]:
    """Every match's hits against the law, their mean loss, the unit they fit, and the names of `named_prompt`."""
    unit, front = sweep.cache.unit, sweep.cache.num_front
    laws = [sweep.cache.laws.predict(theory.reuse, match, len(prompt)) for match, prompt in zip(sweep.matches, sweep.prompts)]
    mean_law = Prediction(*theory.predict(theory.mean_rounding_loss, unit))
    blocks = sweep.cache.blocks_for(len(sweep.base) + sum(map(len, sweep.prompts)), len(sweep.prompts))
    target = session.open_target(**sweep.cache.engine_fields, num_gpu_blocks=blocks)
    try:
        cold = prove_cold(session, target, sweep.canary_ids)
        target.complete(sweep.base)
        label = f"{sweep.group}, {sweep.row}"
        completions = [send_counted(session, target, prompt, label) for prompt in sweep.prompts]
        names = target.block_hashes(named_prompt)
    finally:
        target.close()
    hits = [one.num_cached_tokens for one in completions]
    found = _as_predicted(sweep, hits, laws)
    if None not in hits:
        matches = [match + front for match in sweep.matches]
        lost = sum(matches) - sum(hits)
        lengths = [len(prompt) + front for prompt in sweep.prompts]
        fitted = fitted_unit(list(zip(matches, lengths, hits)), unit, sweep.group, sweep.row)
        assert fitted is not None, "a match of 2·unit − 1 tokens leaves one unit"
        found += [Measurement("mean_loss", "tokens", (lost / len(hits),), sweep.group, sweep.row, mean_law), fitted]
    due = Prediction(sum(law.value for law in laws), "the sum over the requests")
    found += counted_beside(sweep.group, sweep.row, completions, due)
    if sweep.cache.is_hash and names:
        law = Prediction(*theory.predict(theory.full_blocks, len(named_prompt), unit))
        note = f"names: of a prompt of {len(named_prompt):,} tokens"
        found.append(Measurement("names", "blocks", (len(names),), sweep.group, sweep.row, law, note=note))
    session.record(*found)
    return found, cold


def _as_predicted(sweep: MatchSweep, hits: Sequence[int | None], laws: Sequence[Prediction]) -> list[Measurement]:
    """How many requests found what their law says, of those whose server tells it; empty when it tells of none."""
    known = [(one, law.value) for one, law in zip(hits, laws) if one is not None]
    if not known:
        return []
    unit, num_unknown = sweep.cache.unit, len(hits) - len(known)
    each = Prediction(len(known), f"each of {len(known)} requests finds {unit}·⌊m/{unit}⌋ of its m tokens")
    note = f"{num_unknown} of {len(hits)} requests tell nothing of their hits, and are left out" if num_unknown else ""
    as_predicted = sum(one == due for one, due in known)
    return [Measurement("requests", "requests", (as_predicted,), sweep.group, sweep.row, each, note=note)]


def loss_chart(sweeps: Sequence[MatchSweep], measurements: Sequence[Measurement]) -> Chart:
    """Mean loss over the unit: of the law, and of each kind of cache."""
    found = {(one.group, one.row): one for one in measurements if one.name == "mean_loss"}
    lines: dict[str, list[tuple[float, float]]] = {}
    for sweep in sweeps:
        one = found[sweep.group, sweep.row]
        lines.setdefault("(U − 1)/2", []).append((sweep.cache.unit, one.predicted.value))
        lines.setdefault("hash cache" if sweep.cache.is_hash else "radix cache", []).append((sweep.cache.unit, one.value))
    series = tuple(ChartSeries(name, points=tuple(sorted(set(points)))) for name, points in lines.items())
    labels = {"x_label": "block or page, tokens", "y_label": "mean loss, tokens"}
    return Chart("lines", "A match loses half a unit on average", series, log_x=True, **labels)


def fitted_unit(observed: Sequence[tuple[int, int, int]], unit: int, group: str, row: str) -> Measurement | None:
    """The unit that explains all hits, read from (match_tokens, prompt_tokens, hits) of each request; 0 says that none does.

    None when these lengths cannot tell the unit, because others would give the same hits.
    """
    most = 2 * max(length for _, length, _ in observed)
    expected = [(match, length, theory.reuse(match, length, unit)) for match, length, _ in observed]
    if theory.fitting_units(expected, most) != [unit]:
        return None
    law = Prediction(unit, f"the one U with U·⌊m/U⌋ = hits for every request is the unit in force, {unit:,}")
    return Measurement("fitted_unit", "tokens", tuple(theory.fitting_units(observed, most)) or (0,), group, row, law)
