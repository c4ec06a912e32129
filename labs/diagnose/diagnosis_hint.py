"""What to do about each cause of labs/diagnose/diagnosis.py: one line for production.

Flags, fields and metrics are those of vLLM 0.32.0 and SGLang 0.5.23.
"""

from __future__ import annotations

from typing import Sequence

HEALTHY = (
    "Nothing to repair in these two. If the server reports less: is caching on, does one server get both, does B ask for prompt "
    "logprobs (then vLLM looks nothing up), was A evicted, or not computed yet?"
)
LOGPROBS = (
    "vLLM looks nothing up for a request with prompt_logprobs, 0 included: they need every position's logits. Ask for them in "
    "requests of their own, and let the others reuse."
)
DRAFTER = "Expected beside a speculative drafter (EAGLE, MTP): it needs the last matched block computed again, a hit takes two."
_MOVE = "Move what varies at {where} (time, user, request id) behind the stable text that follows it."
_IDENTITY = {
    "cache salt": "Give one cache_salt to each trust domain (tenant or user), not to each request.",
    "LoRA adapter": "Two adapters, or one and none, never share K/V: compare requests of one adapter.",
    "LoRA path": "Load this adapter from one path: the path is part of the key, and another one counts as other weights.",
    "images": (
        "Put stable text in front of images, and give equal images equal identifiers: all K/V behind an image depends on it."
    ),
}


def front(equal_after: int) -> str:
    """The ids differ at position 0."""
    if not equal_after:
        return "These prompts share no front at all: compare two requests of one template and one system prompt."
    return _MOVE.format(where="the very front")


def divergence(position: int) -> str:
    """The ids differ later, and agree again."""
    return _MOVE.format(where=f"position {position:,}")


def parted(position: int) -> str:
    """The ids differ later, and nothing behind is worth a block."""
    return (
        f"These part at position {position:,}, and no whole block behind it agrees again. If the two should share more, that is "
        "where to look; if not, there is nothing to repair in their text."
    )


def identity(differences: Sequence[str]) -> str:
    """The keys differ in these parts."""
    return " ".join(_IDENTITY[name] for name in differences)


def too_short(common: int, ids_equal: bool, unit: int, drafter: bool) -> str:
    """No whole block is shared; the next length at which one would be."""
    blocks, needed = ("two whole blocks", 2 * unit) if drafter else ("a whole block", unit)
    would_hit = f"a prompt of {needed + 1:,} tokens" if ids_equal else f"a shared front of {needed:,}"
    return (
        f"A hit needs {blocks} of {unit:,} and one token behind: these share {common:,}, {would_hit} would hit. Make the stable "
        "text longer, or the block smaller (vLLM --block-size, SGLang --page-size; where cache_hit_alignment_tokens of "
        "vllm:cache_config_info is a number, vLLM's effective size is that)."
    )


def last_token(length: int, unit: int) -> str:
    """An aligned prompt, repeated."""
    with_it = "" if unit == 1 else f", and its block of {unit:,} with it"
    again = f"the last token is always computed again{with_it}"
    return f"Expected, no fault: {again}. A prompt of {length + 1:,} would reuse it."
