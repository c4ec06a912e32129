"""SaltSeries: who shares a salt, and what that costs: requests of several users and tenants with one system prompt.

    none       one cache for all
    tenant     one for each company
    user       one for each person
    request    one for each request: nothing is ever reused

The prefix cache holds the system prompt once for each salt, and computes it once for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Sequence

from labs import theory
from labs.caches import Cache
from labs.protocol import LabSession, Measurement, Prediction
from labs.salts import salts
from labs.targets.base import Completion, Target
from labs.witnesses import counted_beside
from labs.workload import SharedPrefixWorkload

SCOPES = ("none", "tenant", "user", "request")


@dataclass(frozen=True)
class SaltSeries:
    """One way to give salts to `num_requests` requests of `num_users` users of `num_tenants` tenants, in turns."""

    scope: str  # one of SCOPES
    num_requests: int
    num_users: int
    num_tenants: int

    @property
    def num_groups(self) -> int:
        """Caches that share nothing."""
        return {"none": 1, "tenant": self.num_tenants, "user": self.num_users, "request": self.num_requests}[self.scope]

    @property
    def row(self) -> str:
        return "no salts" if self.scope == "none" else f"a salt per {self.scope}"

    def salts(self, seed: int) -> list[str | None]:
        """The salt of each request; neighbours in time are different users."""
        if self.scope == "none":
            return [None] * self.num_requests
        fresh: Iterator[str] = salts(seed)
        by_group = [next(fresh) for _ in range(self.num_groups)]
        # A user's requests come from one tenant: group numbers are taken one from the other.
        users = (request % self.num_users for request in range(self.num_requests))
        groups = {"tenant": (user % self.num_tenants for user in users), "user": users, "request": range(self.num_requests)}
        return [by_group[group] for group in groups[self.scope]]


def measure_salts(
    session: LabSession, target: Target, cache: Cache, series: SaltSeries, workload: SharedPrefixWorkload, seed: int
) -> list[Measurement]:
    """Send all requests, one after the other; hits, hit rate, and the blocks they leave in the cache.

    The target is cold but for a canary; the pool holds everything.
    """
    group = f"{cache.title}: what salts cost"
    prompts, laws = workload.prompts, cache.laws
    num_shared, length, is_key = len(workload.shared_ids), len(prompts[0]), series.scope == "user"
    later = laws.predict(theory.reuse, num_shared, length)
    # A salt's first request finds nothing at all; without salts it finds what a server puts in front of every prompt.
    first = laws.predict(theory.reuse, 0, length) if series.scope == "none" else laws.predict_new(length)
    each = [first] * series.num_groups + [later] * (series.num_requests - series.num_groups)
    hits = laws.total(each, theory.grouped_prefix_hits, series.num_requests, series.num_groups, num_shared, length)
    queries = laws.predict(theory.queries, series.num_requests, length)
    rate = Prediction(*theory.predict(theory.hit_rate, int(hits.value), int(queries.value)))
    names = None if target.engine is None else target.engine.manager.prefix_cache
    num_before = 0 if names is None else names.num_cached_keys
    target.counters()
    completions = []
    for prompt, salt in zip(prompts, series.salts(seed), strict=True):
        completions.append(target.complete(prompt, cache_salt=salt))
        session.progress(f"{group}: {series.row}")
    counted = target.counters()
    if names is None:
        return _judge_served(session, group, series.row, completions, (hits, queries, rate), is_key)
    blocks = theory.predict(theory.grouped_prefix_blocks, series.num_requests, series.num_groups, num_shared, length, cache.unit)
    found = [
        Measurement("hits", "tokens", (counted.hits,), group, series.row, hits, key=is_key),
        Measurement("hit_rate", "ratio", (counted.hits / max(1, counted.queries),), group, series.row, rate),
        Measurement("blocks", "blocks", (names.num_cached_keys - num_before,), group, series.row, Prediction(*blocks), key=is_key),
    ]
    session.record(*found)
    return found


def _judge_served(
    session: LabSession,
    group: str,
    row: str,
    completions: Sequence[Completion],
    laws: tuple[Prediction, Prediction, Prediction],
    is_key: bool,
) -> list[Measurement]:
    """A server's account: what requests found of what they looked up; how many blocks it keeps it does not tell."""
    hits, queries, rate = laws
    cached = [one.num_cached_tokens for one in completions]
    if None in cached:
        return []
    found = [
        Measurement("hits", "tokens", (sum(cached),), group, row, hits, key=is_key),
        *counted_beside(group, row, completions, hits),
        Measurement("hit_rate", "ratio", (sum(cached) / int(queries.value),), group, row, rate),
    ]
    session.record(*found)
    return found
