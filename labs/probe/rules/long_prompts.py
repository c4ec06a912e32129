"""Long prompts: whether they reach the model whole, and whether their repeats find what the law of shorter ones says.

The unit is told by the shortest prompts that find anything. What treats long ones otherwise (a salt, a limit, a text that is put
into their middle) shows in repeats of the person's own length, and in those that were timed.
"""

from __future__ import annotations

from labs.probe.explanation import Explanation
from labs.probe.observation import Observations
from labs.probe.rules.fronts import changes_in_front
from labs.probe.rules.words import cached_by_length, numbers
from labs.probe.sent import OWN, TIMING, Sent
from labs.probe.verdict import CANNOT_TELL, CERTAIN, FAULT, STRONG, WEAK, Verdict


def cut(seen: Observations) -> Verdict | None:
    """Whether the server counts fewer tokens than were sent."""
    # Some count a prompt without what was found of it.
    new = [one for one in seen.sent if not (one.turn or one.cached or one.usage.cached_tokens or one.matched is not None)]
    pairs = sorted({(one.num_ids, one.usage.prompt_tokens) for one in new if one.num_ids and one.usage.prompt_tokens})
    fewer = [(sent, counted) for sent, counted in pairs if counted < sent]
    if not fewer:
        return None
    shown = ", ".join(f"{sent:,} → {counted:,}" for sent, counted in (*[one for one in pairs if one not in fewer][-1:], *fewer))
    evidence = (f"tokens sent → prompt_tokens counted: {shown}",)
    lost = {sent - counted for sent, counted in pairs}
    if len(lost) == 1:
        finding = f"Every prompt is counted {lost.pop():,} tokens shorter than it was sent: they are taken away, or not counted."
        return Verdict("cut", CANNOT_TELL, STRONG, finding, evidence, "Ask the server itself, without a gateway in front.")
    sent, counted = next((pair for pair in fewer if pair[0] == seen.prompt_tokens), fewer[-1])
    finding = f"Long prompts are cut on their way: of {sent:,} tokens sent the model sees {counted:,}."
    next_step = (
        "Find what cuts them (a gateway's limit, truncate_prompt_tokens, a context shorter than announced): a lost front shares "
        "nothing, and what is lost is not answered."
    )
    return Verdict("cut", FAULT, CERTAIN if seen.form == "ids" else STRONG, finding, evidence, next_step)


def long_prompts(seen: Observations) -> Verdict | None:
    """Whether repeats of long prompts fall short each time, where those of shorter ones find all they can."""
    law = seen.explanation
    if law is None or seen.is_unsteady or seen.new_prompts.are_found or changes_in_front(seen):
        return None
    for purpose in (OWN, TIMING):
        repeats = [one for one in seen.prompt_repeats if one.purpose == purpose and one.length]
        if len(repeats) > 1 and all(seen.falls_short(one) for one in repeats):
            return _falling_short(seen, law, repeats)
    return None


def _falling_short(seen: Observations, law: Explanation, repeats: list[Sent]) -> Verdict:
    length, found = repeats[-1].length, sorted({one.cached for one in repeats})
    possible = law.hits(length, length)
    whole = max((one.length for one in seen.known_repeats if one.length and not seen.falls_short(one)), default=0)
    evidence = (*cached_by_length(repeats), f"{possible:,} possible; up to {whole:,} tokens repeats find all they can")
    if seen.is_crowded:
        finding = f"Repeats of {length:,} tokens find {numbers(found)} of {possible:,}: others may have pushed them out."
        return Verdict("long", CANNOT_TELL, WEAK, finding, evidence, "Ask again at a quiet moment.")
    next_step = "Ask the server itself with prompts of that length, and see what treats them otherwise than short ones."
    if len(found) == 1 and found[0]:
        finding = (
            f"Repeats of {length:,} tokens find {found[0]:,} of {possible:,}: something changes between tokens {found[0]:,} and "
            f"{found[0] + law.unit:,} of long prompts, or no more of one is kept."
        )
        return Verdict("long", FAULT, STRONG, finding, evidence, next_step)
    what = "nothing" if found == [0] else f"{numbers(found)} of {possible:,}"
    finding = (
        f"Repeats of {length:,} tokens find {what}, though shorter ones find all they can: long prompts are given a salt, sent "
        "elsewhere, or not kept."
    )
    return Verdict("long", FAULT, STRONG, finding, evidence, next_step)
