"""Clients at once get each their own answer, and the counters are the sums of the replies; `soak.py` runs it for longer."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.server.served import served
from tests.servers.soak import soak


@pytest.mark.parametrize("flavor", ["vllm", "sglang"])
def test_no_reply_is_lost_or_mixed_up_and_the_counters_equal_the_replies_sums(flavor):
    with served(flavor=flavor) as url:
        result = asyncio.run(soak(url, num_clients=24, seconds=1.5))
    assert result.num_replies > 24 and result.wrong == []
    assert (result.counted.queries, result.counted.hits) == (result.prompt_tokens, result.cached_tokens)
    assert result.cached_tokens > 0
