"""How much a request may have, and how much the cache keeps: by what the server announces, and with --stress by what it loses
after ever more tokens of others."""

from __future__ import annotations

from labs.probe.flags import flag
from labs.probe.observation import Observations
from labs.probe.rules.words import count, numbers
from labs.probe.verdict import CERTAIN, EXPECTED, FAULT, FINE, STRONG, Verdict

USUAL_PROMPT = 1_000  # tokens, where the person names no length
MIN_PROMPTS = 4  # that a pool should keep: a conversation, and some others between its turns
MUCH_LESS = 0.5  # of the announced pool


def length(seen: Observations) -> Verdict | None:
    """Whether a request may be as long as the person's prompts at all."""
    if not seen.is_own_too_long:
        return None
    own, most = seen.prompt_tokens, seen.facts.max_model_len
    next_step = "Serve with a longer --max-model-len (SGLang: --context-length), or send less."
    if most is not None and own >= most:
        finding = f"Your {own:,}-token prompts exceed what a request may have here, {most:,} tokens with its output."
        return Verdict("length", FAULT, CERTAIN, finding, (f"announced: up to {most:,} tokens a request",), next_step)
    finding = f"Your {own:,}-token prompts are too long here: shorter ones were refused."
    return Verdict("length", FAULT, STRONG, finding, (f"refused: a prompt of {seen.longest_refused:,} tokens",), next_step)


def pool(seen: Observations) -> Verdict | None:
    """Whether the pool is too small for prompts to be found again."""
    announced, own = seen.facts.pool_tokens, seen.own_prompt_tokens
    said = (f"announced: {announced:,} tokens",) if announced else ()
    length = own or USUAL_PROMPT
    more = f"{flag('pool', seen.facts)}; or fewer different prompts at a time."
    if announced and own and announced < MIN_PROMPTS * own:
        finding = (
            f"The pool holds {announced:,} tokens, {count(announced // own, 'prompt')} of {own:,}: with more than that in "
            "turn, each is pushed out before it comes again."
        )
        return Verdict("pool", FAULT, CERTAIN, finding, said, more)
    if announced and own is None and announced < MIN_PROMPTS * USUAL_PROMPT:
        most = seen.facts.max_model_len
        if most is not None and announced < most:
            finding = f"The pool holds {announced:,} tokens, less than one request may have ({most:,})."
            return Verdict("pool", FAULT, CERTAIN, finding, said, more)
        if seen.is_kept is False and seen.hitting_repeats:
            finding = f"The pool holds {announced:,} tokens, and what is some seconds old is lost: what came between pushes it out."
            return Verdict("pool", FAULT, STRONG, finding, said, more)
    if not seen.rungs or not seen.hitting_repeats:
        return None
    lines = tuple(
        f"after {rung.tokens_between:,} tokens of others: {numbers([rung.cached])} of {rung.length:,} cached" for rung in seen.rungs
    )
    last = seen.rungs[-1]
    if last.cached:
        return Verdict(
            "pool", FINE, STRONG, f"A prompt is still found after {last.tokens_between:,} tokens of others.", (*said, *lines)
        )
    most = last.tokens_between + 2 * last.length  # the prompt, the others, and the prompt's repeat
    if most < MIN_PROMPTS * length:
        finding = f"The cache keeps less than {most:,} tokens: fewer than {MIN_PROMPTS} prompts of {length:,}."
        return Verdict("pool", FAULT, STRONG, finding, (*said, *lines), more)
    if announced and most < MUCH_LESS * announced:
        finding = (
            f"A prompt is lost after {last.tokens_between:,} tokens of others, though {announced:,} fit: others use "
            "the pool too, or it is less."
        )
        return Verdict("pool", FAULT, STRONG, finding, (*said, *lines), "Look at the pool's use over the day; " + more)
    finding = f"A prompt is lost once {last.tokens_between:,} tokens of others came after it: the pool's size, no fault."
    return Verdict("pool", EXPECTED, STRONG, finding, (*said, *lines), more)
