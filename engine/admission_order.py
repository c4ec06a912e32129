"""Admission order: waiting requests sorted by what the cache holds for them, before each step.

    fcfs, priority   the queue's own order; nothing is looked up
    lpm              longest cached prefix first: what is there is used before it is evicted
    dfs-weight       along the radix tree, depth first, the subtree with most waiting requests first: those that share a
                     prefix run together

Cached prefixes of 32 tokens or less do not decide: among requests that share a longer prefix with each other than with the
cache, the first goes ahead and the others are put last, so that they find what it computes.

Source: SGLang 0.5.23, managers/schedule_policy.py (default thresholds).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Sequence

from engine.kvcache.kv_cache_manager import KVCacheManager
from engine.kvcache.radix_cache import RadixPrefixCache
from engine.kvcache.radix_tree import RadixNode, RadixTree
from engine.request import Request

CACHE_AWARE_POLICIES = ("lpm", "dfs-weight")

MAX_SORTED_REQUESTS = 128  # a longer queue is served as it came: looking all up would take longer than it saves
SHORT_MATCH_TOKENS = 32  # of a cached prefix that does not keep requests from waiting for each other
SHARED_TOKENS = 32  # with an earlier waiting request, from which a request is put last


def admission_order(policy: str, waiting: Sequence[Request], manager: KVCacheManager) -> list[Request]:
    """The waiting requests in the order to admit them. The queue's order breaks ties, and is all there is without a cache."""
    if not manager.caching_enabled:
        return list(waiting)
    if policy == "lpm":
        return _longest_prefix_first(waiting, manager)
    if policy == "dfs-weight":
        return _depth_first_by_weight(waiting, manager)
    return list(waiting)


def _longest_prefix_first(waiting: Sequence[Request], manager: KVCacheManager) -> list[Request]:
    if len(waiting) > MAX_SORTED_REQUESTS:
        return list(waiting)
    ahead = RadixTree(page_size=1)  # the prompts of those that go ahead
    ranks: list[tuple[bool, int]] = []
    for request in waiting:
        num_cached = manager.get_computed_blocks(request).num_tokens
        # Who does not read the cache gains nothing by waiting for it.
        may_wait = num_cached <= SHORT_MATCH_TOKENS and manager.reads_cache(request)
        put_last = may_wait and _shares_with_one_ahead(request, ahead)
        ranks.append((put_last, 0 if put_last else -num_cached))
    order = sorted(range(len(waiting)), key=ranks.__getitem__)
    return [waiting[index] for index in order]


def _shares_with_one_ahead(request: Request, ahead: RadixTree) -> bool:
    """Whether an earlier request will compute a good part of this one; if not, this one goes ahead itself."""
    key, namespace = request.identity.content_ids(request.all_token_ids), request.identity.namespace
    if ahead.match(key, namespace).num_tokens >= SHARED_TOKENS:
        return True
    ahead.insert(key, range(len(key)), namespace)
    return False


def _depth_first_by_weight(waiting: Sequence[Request], manager: KVCacheManager) -> list[Request]:
    cache = manager.prefix_cache
    assert isinstance(cache, RadixPrefixCache), "only a tree can be walked"
    root = cache.tree.root
    by_node: dict[RadixNode, list[Request]] = defaultdict(list)
    for request in waiting:
        by_node[manager.get_computed_blocks(request).node or root].append(request)
    # Parents come before children in `nodes`, so that backwards every child's weight is complete.
    weights = {node: len(requests) for node, requests in by_node.items()}
    for node in reversed(list(cache.tree.nodes())):
        weights[node.parent] = weights.get(node.parent, 0) + weights.get(node, 0)
    order: list[Request] = []
    stack: list[tuple[RadixNode, bool]] = [(root, False)]
    while stack:
        node, children_done = stack.pop()
        if children_done:
            order.extend(by_node.get(node, ()))
            continue
        stack.append((node, True))
        children = sorted(node.children.values(), key=lambda child: -weights.get(child, 0))
        stack.extend((child, False) for child in reversed(children) if weights.get(child))
    return order
