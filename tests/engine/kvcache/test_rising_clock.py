"""Two uses of the tree are never equally old."""

from engine.config import EngineConfig
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.kvcache.rising_clock import RisingClock
from engine.request import Request


def test_a_clock_that_stands_still_or_goes_back_is_made_to_rise():
    times = iter([1.0, 1.0, 1.0, 0.5, 2.0])
    clock = RisingClock(lambda: next(times))
    seen = [clock() for _ in range(5)]
    assert seen == sorted(set(seen)) and seen[0] == 1.0 and seen[-1] == 2.0 and seen[3] < 1.000001


def test_the_least_recently_used_leaf_dies_first_though_time_stands_still():
    config = EngineConfig(prefix_cache="radix", page_size=1)
    manager, _ = open_kv_cache(config, num_blocks=14, max_model_len=64, clock=lambda: 0.0)

    def serve(name, ids):
        request = Request(name, ids)
        match = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, request.num_tokens - match.num_tokens, match) is not None
        request.num_computed_tokens = request.num_tokens
        manager.publish_computed(request)
        manager.free(request)
        return match.num_tokens

    a, b, c, d = (range(first, first + 4) for first in (100, 200, 300, 400))
    for number, ids in enumerate((a, a, b, c, a)):  # one page is left, and b was used longest ago
        serve(f"{number}", ids)
    serve("d", d)
    assert serve("a", a) == 3
    assert serve("b", b) == 0
