"""What a prompt reuses: hits, what is lost and to which rule, and the next length that would reuse more."""

from __future__ import annotations

from labs import theory
from labs.estimates.estimate import Estimate, Granularity, figure
from labs.estimates.figure import Figure, counted


def estimate_reuse(
    prompt_tokens: int,
    match_tokens: int | None,
    granularity: Granularity,
    *,
    drafter: bool = False,
    num_requests: int | None = None,
    output_tokens: int | None = None,
) -> Estimate:
    """What a prompt of L tokens takes from the cache when its first m are there; m = L is an exact repeat.

    match_tokens   None: no match is asked about, only the next turn (output_tokens)
    num_requests   N requests of L tokens that share the match and differ after it
    output_tokens  k tokens that this prompt's turn generates; the next turn starts with L + k tokens
    """
    figures: list[Figure] = []
    remarks: list[str] = []
    if match_tokens is not None:
        figures += _figures(prompt_tokens, match_tokens, granularity, drafter)
        remarks += _remarks(prompt_tokens, match_tokens, granularity, drafter)
    if match_tokens is not None and num_requests is not None:
        figures += _series_figures(num_requests, match_tokens, prompt_tokens, granularity.size, drafter)
        remarks.append("The first request finds nothing and pays for the others.")
    if output_tokens is not None:
        turn = (prompt_tokens, output_tokens)
        figures.append(figure("offered", "offered to the next turn", "tokens", theory.offered_by_turn, *turn))
        figures.append(
            figure("next_turn_hits", "reused by the next turn", "tokens", theory.next_turn_hits, *turn, granularity.size)
        )
        remarks.append("The last generated token was sampled, never computed: it has no K/V to offer.")
    return Estimate(
        title=f"{_title(prompt_tokens, match_tokens)}, {granularity.text}",
        inputs={
            "prompt_tokens": prompt_tokens, "match_tokens": match_tokens, "unit": granularity.size, "unit_is": granularity.noun,
            "drafter": drafter, "num_requests": num_requests, "output_tokens": output_tokens,
        },
        figures=tuple(figures),
        remarks=tuple(remarks),
        sources=(
            "radix cache: SGLang 0.5.23, mem_cache/radix_cache.py"
            if granularity.noun == "page"
            else "hash cache: vLLM 0.32.0, v1/core/kv_cache_manager.py",
        ),
    )  # fmt: skip


def _title(prompt_tokens: int, match_tokens: int | None) -> str:
    if match_tokens is None:
        return f"A turn of {counted(prompt_tokens, 'prompt token')}"
    if match_tokens == prompt_tokens:
        return f"Exact repeat of {counted(prompt_tokens, 'token')}"
    return f"{counted(prompt_tokens, 'token')}, the first {match_tokens:,} in the cache"


def _figures(prompt: int, match: int, granularity: Granularity, drafter: bool) -> list[Figure]:
    unit, nouns = granularity.size, f"{granularity.noun}s"
    is_repeat = match == prompt
    if is_repeat:
        hits_law, arguments = theory.drafter_hits if drafter else theory.repeat, (prompt, unit)
    else:
        hits_law, arguments = theory.drafter_reuse if drafter else theory.reuse, (match, prompt, unit)
    figures = [figure("hits", "reused", "tokens", hits_law, *arguments, of=prompt)]
    hits = int(figures[0].value)
    if unit > 1:
        in_prompt = theory.full_blocks(prompt, unit)
        figures.append(figure("blocks", f"{nouns} reused", nouns, theory.full_blocks, hits, unit, of=in_prompt))
    figures.append(figure("hit_rate", "hit rate of this request", "ratio", theory.hit_rate, hits, prompt))
    figures.append(figure("lost_to_rounding", f"lost to whole {nouns}", "tokens", theory.rounding_loss, match, unit))
    last_token = figure("lost_to_last_token", "lost to the last token", "tokens", theory.last_token_loss, match, prompt, unit)
    figures.append(last_token)
    if drafter:
        figures.append(figure("lost_to_drafter", "lost to the drafter", "tokens", theory.drafter_loss, match, prompt, unit))
    if is_repeat:
        name, label, law, length = "next_longer", "next length that reuses more", theory.next_longer_repeat, prompt
    else:
        name, label, law, length = "next_longer", "next match that reuses more", theory.next_longer_match, match
    figures.append(figure(name, label, "tokens", law, length, unit, int(drafter)))
    return figures


def _remarks(prompt: int, match: int, granularity: Granularity, drafter: bool) -> list[str]:
    """Why it is no more, and what would be more."""
    unit, noun = granularity.size, granularity.noun
    hits = (theory.drafter_reuse if drafter else theory.reuse)(match, prompt, unit)
    remarks = []
    if match == prompt:
        whole = "" if unit == 1 else f", and only whole {noun}s are reused"
        remarks.append(
            "The last token is computed again: its logits choose the next one. "
            f"So at most {counted(prompt - 1, 'token')} can match{whole}."
        )
    if 0 < match < unit:
        remarks.append(f"The shared prefix is shorter than one {noun}: 0 hits.")
    if drafter:
        remarks.append(f"The drafter needs the hidden state of the last matched {noun}: that {noun} is computed again.")
    if match == prompt:
        longer = theory.next_longer_repeat(prompt, unit, int(drafter))
        hits_law = theory.drafter_hits if drafter else theory.repeat
        more = "One token more" if longer == prompt + 1 else f"{longer - prompt:,} tokens more"
        remarks.append(f"{more} would change that: a repeat of {longer:,} tokens reuses {hits_law(longer, unit):,}.")
        if noun == "block" and unit > 1 and not drafter:
            remarks.append(f"The radix cache with page 1 reuses {theory.repeat(prompt, 1):,}.")
    elif match > 0:
        longer = theory.next_longer_match(match, unit, int(drafter))
        verb = "would reuse more" if hits else "would hit"
        inside = "" if longer < prompt else f", in a prompt of at least {longer + 1:,}"
        remarks.append(f"The next length that {verb} is {longer:,}{inside}.")
    return remarks


def _series_figures(num_requests: int, shared: int, prompt: int, unit: int, drafter: bool) -> list[Figure]:
    law = theory.drafter_shared_prefix_hits if drafter else theory.shared_prefix_hits
    who = counted(num_requests, "request")
    queries = figure("series_queries", "tokens looked up", "tokens", theory.queries, num_requests, prompt)
    hits = figure("series_hits", f"hits of {who}", "tokens", law, num_requests, shared, prompt, unit, of=queries.value)
    return [
        hits,
        queries,
        figure("series_hit_rate", f"hit rate of {who}", "ratio", theory.hit_rate, hits.value, queries.value),
    ]
