"""Theory: the laws of prefix caching, as functions that return the number a lab should measure.

A lab asks `predict(law, …)` before it runs anything and gets the value with the law's formula, the numbers filled
in:

    >>> predict(repeat, prompt_tokens=96, unit=16)
    Predicted(value=80, law='16·⌊(96 − 1)/16⌋ = 80')

`Prediction(*predict(…))` is then the lab's prediction (labs/protocol.py).

`unit` is the granularity of a hit in tokens: the hash cache's block size (16), or the radix cache's page size (1
or 16). Both caches follow the same laws. Costs come from engine/cost_model.py; nothing is computed twice.

One file of labs/laws for each kind of law:

    matches          one request: full blocks, reuse, what is lost to whole blocks and to the last token
    prompt_ids       what prompts share, by their token ids
    request_series   requests one after the other, from an empty cache, with room for all
    lookups          what a lookup looks at, and what it leaves
    small_pools      eviction and preemption
    invalidation     what empties the cache
    outputs          what a model answers, whatever a cache does
    guesses          what a neighbour can learn
    cost             FLOPs, seconds, saturation
    capacity         the K/V pool
    collisions       names that are equal by accident

Sources: for the hash cache vLLM 0.32.0, v1/core/kv_cache_manager.py and v1/core/block_pool.py; for the radix cache
SGLang, mem_cache/radix_cache.py (Zheng et al. 2023, arXiv:2312.07104).
"""

from __future__ import annotations

from labs.laws.capacity import (
    concurrent_requests,
    key_bytes,
    kv_bytes_per_token,
    pool_blocks,
    pool_bytes,
    pool_tokens,
    usable_blocks,
)
from labs.laws.collisions import blocks_at_chance, collision_probability, naming_seconds
from labs.laws.cost import (
    StepCost,
    achieved_flops_per_s,
    batched_ttfts,
    cold_over_warm,
    least_cold_over_warm,
    prefill_flops,
    prefill_load,
    prefill_seconds,
    redundant_flops_per_s,
    redundant_share,
    saturating_requests_per_s,
    saved_seconds,
    simulated_ttft,
    weight_read_seconds,
)
from labs.laws.guesses import (
    chance_auc_spread,
    guess_auc,
    guesses_to_extend,
    single_token_guesses,
    tokens_guessed_singly,
)
from labs.laws.invalidation import fewest_wrong_outputs, resets_accepted
from labs.laws.law import Predicted, law, predict
from labs.laws.lookups import duplicate_blocks, hash_probes, tree_probes
from labs.laws.matches import (
    drafter_hits,
    drafter_loss,
    drafter_reuse,
    full_blocks,
    last_token_loss,
    mean_rounding_loss,
    moved_behind_gain,
    names_in_common,
    newly_full_blocks,
    next_longer_match,
    next_longer_repeat,
    next_turn_hits,
    offered_by_turn,
    repeat,
    reproduced_hashes,
    reuse,
    rounding_loss,
    unnamed_tail,
)
from labs.laws.outputs import differing_outputs
from labs.laws.prompt_ids import common_prefix, control_hits, fitting_units, longest_match, path_nodes
from labs.laws.request_series import (
    concurrent_repeat_hits,
    drafter_shared_prefix_hits,
    first_step_requests,
    fresh_salt_hits,
    grouped_prefix_blocks,
    grouped_prefix_hits,
    hit_rate,
    queries,
    shared_extra_hits,
    shared_prefix_hits,
    unique_append_hits,
    unique_prepend_hits,
)
from labs.laws.small_pools import (
    computed_twice,
    failed_admissions,
    hits_in_turn,
    of_preempted,
    outputs_before_preemption,
    outputs_of_newer,
    preemptions_of_newer,
    resumed_hits_tails_first,
    resumed_hits_whole_leaf,
    resumed_queries,
    turn_hits_tails_first,
    turn_hits_whole_prompts,
    unaccounted_tokens,
)

__all__ = [
    "Predicted", "law", "predict", "drafter_hits", "drafter_loss", "drafter_reuse", "full_blocks", "last_token_loss",
    "mean_rounding_loss", "moved_behind_gain", "names_in_common", "newly_full_blocks", "next_longer_match",
    "next_longer_repeat", "next_turn_hits", "offered_by_turn", "repeat", "reproduced_hashes", "reuse",
    "rounding_loss", "unnamed_tail", "common_prefix", "control_hits", "fitting_units", "longest_match", "path_nodes",
    "concurrent_repeat_hits", "drafter_shared_prefix_hits", "first_step_requests", "fresh_salt_hits",
    "grouped_prefix_blocks", "grouped_prefix_hits", "hit_rate", "queries", "shared_extra_hits", "shared_prefix_hits",
    "unique_append_hits", "unique_prepend_hits", "duplicate_blocks", "hash_probes", "tree_probes", "computed_twice",
    "failed_admissions", "hits_in_turn", "outputs_before_preemption", "resumed_hits_tails_first",
    "resumed_hits_whole_leaf", "resumed_queries", "turn_hits_tails_first", "turn_hits_whole_prompts",
    "differing_outputs", "fewest_wrong_outputs", "resets_accepted", "chance_auc_spread", "guess_auc", "guesses_to_extend",
    "single_token_guesses", "tokens_guessed_singly", "StepCost", "achieved_flops_per_s", "batched_ttfts", "cold_over_warm",
    "least_cold_over_warm", "of_preempted", "outputs_of_newer", "preemptions_of_newer", "unaccounted_tokens", "prefill_flops",
    "prefill_load", "prefill_seconds", "redundant_flops_per_s", "redundant_share",
    "saturating_requests_per_s", "saved_seconds", "simulated_ttft", "weight_read_seconds", "concurrent_requests",
    "key_bytes", "kv_bytes_per_token", "pool_blocks", "pool_bytes", "pool_tokens", "usable_blocks",
    "blocks_at_chance", "collision_probability", "naming_seconds",
]  # fmt: skip
