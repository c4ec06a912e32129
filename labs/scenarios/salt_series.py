"""SaltSeries: who shares a salt, and what that costs: requests of several users and tenants with one system prompt.

    none       one cache for all
    tenant     one for each company
    user       one for each person
    request    one for each request: nothing is ever reused

The prefix cache holds the system prompt once for each salt, and computes it once for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator

from labs import theory
from labs.protocol import LabSession, Measurement, Prediction
from labs.salts import salts
from labs.targets.base import Target
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
    session: LabSession, target: Target, series: SaltSeries, workload: SharedPrefixWorkload, group: str, seed: int
) -> list[Measurement]:
    """Send all requests, one after the other; hits, hit rate, and the blocks they leave in the cache.

    The target is cold but for a canary; the pool holds everything. `group` is the table's title.
    """
    unit, prompts = target.info.unit_size, workload.prompts
    sizes = (series.num_requests, series.num_groups, len(workload.shared_ids), len(prompts[0]), unit)
    hits = theory.predict(theory.grouped_prefix_hits, *sizes)
    queries = theory.queries(series.num_requests, len(prompts[0]))
    blocks = theory.predict(theory.grouped_prefix_blocks, *sizes)
    cache = target.engine.manager.prefix_cache
    num_before = cache.num_cached_keys
    target.counters()
    for prompt, salt in zip(prompts, series.salts(seed), strict=True):
        target.complete(prompt, cache_salt=salt)
        session.progress(f"{group}: {series.row}")
    counted = target.counters()
    rate = theory.predict(theory.hit_rate, hits.value, queries)
    num_blocks, is_key = cache.num_cached_keys - num_before, series.scope == "user"
    found = [
        Measurement("hits", "tokens", (counted.hits,), group, series.row, Prediction(*hits), key=is_key),
        Measurement("hit_rate", "ratio", (counted.hits / max(1, counted.queries),), group, series.row, Prediction(*rate)),
        Measurement("blocks", "blocks", (num_blocks,), group, series.row, Prediction(*blocks), key=is_key),
    ]
    session.record(*found)
    return found
