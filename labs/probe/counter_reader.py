"""CounterReader: the server's own counters, read around the probe's requests.

    reading ─▶ request ─▶ reading, again until the request is in it ─▶ request ─▶ …

One request's reading after is the next one's before. Counters lag the reply by an engine step, so a request is waited for a
moment; where several never came, nobody waits any more. What else the readings show (a fall, SGLang's gauge) is noted.
"""

from __future__ import annotations

import time
from typing import Callable

from labs.probe.observation import Observations
from labs.probe.sent import UNKNOWN
from labs.servers.metrics_page import MetricsPage
from labs.servers.prefix_counters import SERIES, CounterReading
from labs.servers.server_client import ServerClient
from labs.targets.base import TargetError

GAUGE = "sglang:cache_hit_rate"
SETTLE_S = 0.4  # that a request is waited for
PAUSE_S = 0.02  # between two readings meanwhile
MAX_UNSETTLED = 3  # requests that were never counted, or not what they found: then no more is waited for that


class CounterReader:
    """Reads on the probe's own connection unless another is given. Adds what it sees besides to `observations`."""

    def __init__(self, client: ServerClient, observations: Observations) -> None:
        self._client, self._observations = client, observations
        self._previous = UNKNOWN
        self._latest: tuple[ServerClient, CounterReading] | None = None  # after the last request, with nothing sent since
        self._num_unsettled = self._num_short = 0

    def read(self, client: ServerClient | None = None) -> CounterReading:
        """The server's lifetime counts now; unknown when it has none."""
        reading = self._read(client or self._client)
        if reading.is_known and client in (None, self._client):  # on others a fall may be another replica's count
            earlier, self._previous = self._previous, reading
            has_fallen = reading.source == earlier.source and not reading.growth_since(earlier).is_known
            self._observations.num_falls += has_fallen
        return reading

    def reread(self, connect: Callable[[], ServerClient], times: int) -> None:
        """Read on new connections, with nothing sent in between: behind a balancer each may meet another replica."""
        for _ in range(times if self._observations.facts.has_counters else 0):
            client = connect()
            try:
                self._observations.rereadings.append(self._read(client))
            finally:
                client.close()

    def before(self, is_counted: bool, client: ServerClient | None = None) -> CounterReading:
        """The reading before a request that is sent now; unknown for one that is not to be counted.

        client  the request's own connection, where it has one: behind a balancer of connections its replica counts it
        """
        client = client or self._client
        latest, self._latest = self._latest, None  # of no use once something else was sent
        if not is_counted:
            return UNKNOWN
        if latest is not None and latest[0] is client:
            return latest[1]
        reading = self.read(client)
        if latest is not None and latest[1].is_known and reading.is_known:
            self._observations.neighbors.append((latest[1], reading))
        return reading

    def growth(
        self, before: CounterReading, length: int | None, client: ServerClient | None = None, found: int | None = None
    ) -> CounterReading:
        """What the counters grew since, for a request of that many tokens; waits until it is in them, if earlier ones were.

        found  tokens that its reply says were found: waited for likewise
        """
        if not before.is_known:
            return UNKNOWN
        wait_until_s = time.perf_counter() + (SETTLE_S if self._num_unsettled < MAX_UNSETTLED else 0.0)
        while True:
            reading = self.read(client)
            self._latest = (client or self._client, reading)
            growth = reading.growth_since(before)
            growth = growth if length is None else growth.without_checks(length)
            settled = growth.is_known and length is not None and growth.queries >= length
            is_short = settled and growth.hits < (found or 0) and self._num_short < MAX_UNSETTLED
            if (settled and not is_short) or time.perf_counter() >= wait_until_s:
                self._num_unsettled += not settled
                self._num_short += is_short
                return growth
            time.sleep(PAUSE_S)

    def _read(self, client: ServerClient) -> CounterReading:
        if not self._observations.facts.has_counters:
            return UNKNOWN
        try:
            reply = client.get("/metrics", timeout_s=10.0)
            page = MetricsPage.parse(reply.text, (*SERIES, GAUGE)) if reply.status_code == 200 else None
        except TargetError:
            page = None
        if page is None:
            return UNKNOWN
        self._observations.gauge = page.first(GAUGE)
        return CounterReading.of(page)
