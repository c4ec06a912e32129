"""What stands in front of a prompt that nobody sent: the same each time costs nothing, a clock or a counter costs everything."""

from __future__ import annotations

from itertools import pairwise
from typing import Sequence

from labs.probe.observation import Observations
from labs.probe.rules.words import control, crowd, numbers
from labs.probe.sent import CHAT, KEPT, OF_REPEATS, SHARED, TEXT, Sent
from labs.probe.verdict import CANNOT_TELL, CERTAIN, EXPECTED, FAULT, FINE, STRONG, WEAK, Verdict
from labs.theory import common_prefix

COMPLETIONS = (*OF_REPEATS, SHARED, TEXT)
LONG_PAUSE_S = 60.0  # after which a clock of minutes would have shown
DAY = "a date belongs at the end, or to the day at most"
ASK_ITSELF = "Ask the server itself, without a gateway in front; look for who resets its cache, and for salts with a time in them."
MOVE = "Find what writes there (gateway, chat template, system prompt) and move what varies behind the stable text"


def front(seen: Observations) -> Verdict | None:
    """Whether completions reach the model as they were sent."""
    change = changes_in_front(seen)
    if change is not None:
        return Verdict("front", FAULT, CERTAIN, f"What stands in front of a prompt changes from request to request: {change}.",
                       _front_evidence(seen), f"{MOVE}.")  # fmt: skip
    extra, texts = front_tokens(seen), seen.of(TEXT)
    if _is_running(seen, TEXT):
        finding = (
            f"Something writes {seen.clocks[TEXT].kind} in front of each text: each minute all that follows is computed again."
        )
        return Verdict("front", FAULT, _sure_of(seen, TEXT), finding, _front_evidence(seen), f"{MOVE}.")
    if extra and not seen.hitting_repeats and seen.known_repeats and seen.is_looked_up is not False:
        if seen.is_crowded:
            finding = (
                f"Something puts {extra:,} tokens in front of each prompt, and equal prompts do not find each other: it changes, or "
                "others push prompts out."
            )
            evidence = (*_front_evidence(seen), *crowd(seen))
            return Verdict("front", CANNOT_TELL, WEAK, finding, evidence, "Ask again at a quiet moment.")
        finding = (
            f"Something puts {extra:,} tokens in front of each prompt, and equal prompts never find each other: what "
            "it puts there changes."
        )
        return Verdict("front", FAULT, STRONG, finding, _front_evidence(seen), f"{MOVE}.")
    if extra and seen.is_kept is False and seen.hitting_repeats:
        if _is_full(seen):
            return _forgotten(seen, "front", _front_evidence(seen))
        finding = (
            f"Something puts {extra:,} tokens in front of each prompt; repeats at once find, later ones do not: a "
            "clock stands there."
        )
        sure = WEAK if _may_be_pushed_out(seen) else STRONG
        return Verdict("front", FAULT, sure, finding, (*_front_evidence(seen), _kept_line(seen)), f"{MOVE}.")
    if seen.is_steady and seen.is_kept is False and _misses(seen, texts):
        return _renamed(seen) or _forgotten(seen, "front", _front_evidence(seen))
    if seen.is_steady and seen.is_kept and _misses(seen, texts):
        finding = (
            "Texts that are sent again find nothing, though token ids that are sent again do: something changes the "
            "text on its way."
        )
        return _at_least_twice(texts, "front", finding, _front_evidence(seen), f"{MOVE}.")
    sure, unless = _unless_slow_clock(seen, TEXT if texts else CHAT)
    if seen.new_prompts.standing_front and not extra:
        finding = f"About {seen.new_prompts.standing_front:,} tokens stand in front of every prompt and are always found{unless}."
        evidence = (*_front_evidence(seen), control(seen.new_prompts.sent))
        return Verdict("front", EXPECTED, sure, finding, evidence, "Know that they are there when you compare lengths.")
    if extra:
        finding = (
            f"Something puts {extra:,} tokens in front of each prompt, the same each time: they count as found, and "
            f"shift nothing{unless}."
        )
        return Verdict(
            "front", EXPECTED, sure, finding, _front_evidence(seen), "Know that they are there when you compare lengths."
        )
    return _as_sent(seen, sure, unless)


def chat(seen: Observations) -> Verdict | None:
    """Whether a chat message that is sent again finds what it left."""
    sent = seen.of(CHAT)
    if len(sent) < 2:
        evidence = (seen.refuses_chat or f"answered chat requests: {len(sent)}",)
        return Verdict("chat", CANNOT_TELL, WEAK, "Chat could not be tried twice.", evidence)
    change = _change(sent)
    pause = f"the same message after {sent[-1].at_s - sent[0].at_s:,.1f} s"
    evidence = (f"{pause}: {numbers(one.length for one in sent)} tokens, {numbers(one.cached for one in sent)} cached",)
    if change is not None:
        finding = f"The chat template, or something before it, writes what changes: {change}."
        return Verdict("chat", FAULT, CERTAIN, finding, evidence, f"{MOVE}; {DAY}.")
    if _is_running(seen, CHAT):
        finding = (
            f"The chat template, or something before it, writes {seen.clocks[CHAT].kind} in front of the message: each minute all "
            "that follows is computed again."
        )
        return Verdict("chat", FAULT, _sure_of(seen, CHAT), finding, evidence, f"{MOVE}; {DAY}.")
    later, explanation = sent[1:], seen.explanation
    if explanation is None or not seen.is_steady or any(one.cached is None or one.length is None for one in later):
        sure = "is the same each time" if _compares(sent) else "could not be compared"
        return Verdict(
            "chat", FINE if _compares(sent) else CANNOT_TELL, WEAK, f"A chat message {sure} as the model sees it.", evidence
        )
    if seen.is_kept is False:
        return _forgotten(seen, "chat", evidence)
    found, possible = max(one.cached for one in later), explanation.hits(sent[-1].length, sent[-1].length)
    evidence = (*evidence, f"a repeat of that length can find {possible:,}")
    if all(seen.falls_short(one) for one in later):
        where = f"between tokens {found:,} and {found + explanation.unit:,}" if found else "in the first unit"
        finding = f"A chat message that is sent again finds {found:,} of {possible:,} tokens: something changes {where}."
        return _at_least_twice(sent, "chat", finding, evidence, f"{MOVE}; {DAY}.")
    sure, unless = _unless_slow_clock(seen, CHAT)
    if CHAT in seen.clocks and seen.clocks[CHAT].has_date:
        finding = "Today's date stands in front of a chat message: each midnight all that follows is computed once more."
        return Verdict("chat", EXPECTED, STRONG, finding, evidence, f"Nothing to repair, if one miss a day is none; {DAY}.")
    return Verdict("chat", FINE, sure, f"A chat message that is sent again finds all it can{unless}.", evidence)


def _as_sent(seen: Observations, sure: str, unless: str) -> Verdict | None:
    """That nothing stands in front, or nothing that changes, as far as equal prompts can be compared."""
    if not _front_evidence(seen):
        return None
    if _has_no_front(seen):
        return Verdict("front", FINE, STRONG, "Prompts reach the model as they were sent.", _front_evidence(seen))
    if any(len(_counts(turns)) > 1 and not _compares(turns) for purpose in COMPLETIONS for turns in seen.turns_of(purpose)):
        finding = "Repeats are counted without what they found, it seems: whether equal prompts reach the model equal is open."
        next_step = "Ask the server itself, without a gateway in front."
        return Verdict("front", CANNOT_TELL, WEAK, finding, _front_evidence(seen), next_step)
    return Verdict("front", FINE, sure, f"Equal prompts reach the model equal{unless}.", _front_evidence(seen))


def _at_least_twice(turns: Sequence[Sent], name: str, finding: str, evidence: tuple[str, ...], next_step: str) -> Verdict:
    """A fault where two repeats fell short; one alone may have met anything."""
    if len(turns) > 2:
        return Verdict(name, FAULT, STRONG, finding, evidence, next_step)
    return Verdict(name, CANNOT_TELL, WEAK, f"{finding} It was sent again only once.", evidence, "Ask again with more time.")


def _is_running(seen: Observations, purpose: str) -> bool:
    """Whether the front that the server showed holds this minute."""
    return purpose in seen.clocks and seen.clocks[purpose].has_time


def _sure_of(seen: Observations, purpose: str) -> str:
    """A time alone may stand there by chance, as it was when the server started; beside today's date it hardly does."""
    return STRONG if seen.clocks[purpose].has_date else WEAK


def _unless_slow_clock(seen: Observations, purpose: str) -> tuple[str, str]:
    """How sure it is that no clock stands in front, and the words for what would not have been seen."""
    sent = seen.of(purpose)
    pause_s = sent[-1].at_s - sent[0].at_s if sent else 0.0
    if purpose in seen.clocks or pause_s >= LONG_PAUSE_S:
        return STRONG, ""
    return WEAK, f"; seen for {pause_s:,.1f} s: a clock of minutes or days would not show"


def _has_no_front(seen: Observations) -> bool:
    """Whether the server counted exactly what was sent, so that there is nothing in front that could change."""
    exact = {one.usage.prompt_tokens - one.num_ids for one in seen.of(*OF_REPEATS) if one.usage.prompt_tokens and one.num_ids}
    texts = {one.usage.prompt_tokens for one in seen.of(TEXT)}
    return exact == {0} and (not texts or seen.tokenized is None or texts == {seen.tokenized})


def _kept_line(seen: Observations) -> str:
    first, *later = seen.of(KEPT)
    lines = (f"{one.at_s - first.at_s:,.1f} s old: {numbers([one.cached])} of {numbers([one.length])}" for one in later)
    return f"a prompt {', '.join(lines)} cached"


def _forgotten(seen: Observations, name: str, evidence: tuple[str, ...]) -> Verdict:
    """Nothing so old is found: whether it was changed or lost is open."""
    causes = [] if name == "front" and _has_no_front(seen) else ["a clock in front of it"]
    causes += ["a salt that changes with time"]
    causes += ["a pool that forgets so soon"] if _may_be_pushed_out(seen) else []
    finding = f"What was found at once is not found some seconds later: {', or '.join(causes)}."
    next_step = "Ask with --stress how much the pool keeps." if _may_be_pushed_out(seen) else ASK_ITSELF
    return Verdict(name, CANNOT_TELL, WEAK, finding, (*evidence, _kept_line(seen)), next_step)


def _renamed(seen: Observations) -> Verdict | None:
    """A fault where a prompt that was sent as it is was lost twice, and nothing can have pushed it out."""
    if len(seen.of(KEPT)) < 3 or not _has_no_front(seen) or _may_be_pushed_out(seen):
        return None
    finding = (
        "What was found at once is not found some seconds later, though nothing stands in front of it and the pool has room: its "
        "identity changes with time (a salt that does), or something empties the cache."
    )
    return Verdict("front", FAULT, STRONG, finding, (*_front_evidence(seen), _kept_line(seen)), ASK_ITSELF)


def _may_be_pushed_out(seen: Observations) -> bool:
    """Whether what the probe and others sent until then may fill the pool."""
    return seen.facts.pool_tokens is None or seen.foreign_queries is None or _is_full(seen)


def _is_full(seen: Observations) -> bool:
    """Whether it is seen to: by what is known of both; where no pool is announced, by others that are served at all."""
    until_s = max((one.at_s for one in seen.of(KEPT)), default=0.0)
    pool, own = seen.facts.pool_tokens, sum(one.length or 0 for one in seen.sent if one.at_s <= until_s)
    return seen.is_crowded if pool is None else own + (seen.foreign_queries or 0) > pool // 2


def bos(seen: Observations) -> Verdict | None:
    """Whether prompts begin with the same special token twice: template and tokenizer both write it."""
    opening = seen.opening_id
    shown = [one for one in seen.of(TEXT, CHAT) if one.prompt_ids]
    if opening is None or not shown:
        return None
    doubled = [one for one in shown if one.prompt_ids[:2] == (opening, opening)]
    evidence = (f"prompts whose ids the server showed: {len(shown)}, with the opening token twice: {len(doubled)}",)
    if doubled:
        finding = (
            "Prompts begin with the tokenizer's opening token twice: the chat template writes it, and the tokenizer adds another."
        )
        next_step = "Send add_special_tokens false with what a template rendered, or take the token out of the template."
        return Verdict("bos", FAULT, CERTAIN, finding, evidence, next_step)
    return Verdict("bos", FINE, CERTAIN, "Prompts begin with the tokenizer's opening token once.", evidence)


def changes_in_front(seen: Observations) -> str | None:
    """In what equal completions differ as the server saw them; None: in nothing that it shows."""
    for purpose in COMPLETIONS:
        for turns in seen.turns_of(purpose):
            change = _change(turns)
            if change is not None:
                return change
    return None


def front_tokens(seen: Observations) -> int:
    """Tokens in front of every prompt that nobody sent, beyond the tokenizer's own; 0 for none, or where nothing tells."""
    exact = {one.usage.prompt_tokens - one.num_ids for one in seen.of(*OF_REPEATS) if one.usage.prompt_tokens and one.num_ids}
    if seen.form == "ids" and len(exact) == 1:
        return max(0, exact.pop())
    counted = {one.usage.prompt_tokens for one in seen.of(TEXT) if one.usage.prompt_tokens}
    if seen.tokenized is not None and len(counted) == 1:
        return max(0, counted.pop() - seen.tokenized)
    return 0


def _change(turns: Sequence[Sent]) -> str | None:
    """In what requests of one prompt differ as the server saw them."""
    for one, other in pairwise(turns):
        if one.prompt_ids is not None and other.prompt_ids is not None and one.prompt_ids != other.prompt_ids:
            return f"equal prompts part at token {common_prefix(one.prompt_ids, other.prompt_ids):,}"
    counts = _counts(turns)
    if _are_counted_without_found(turns):
        return None
    return f"equal prompts have {' or '.join(f'{one:,}' for one in sorted(counts))} tokens" if len(counts) > 1 else None


def _counts(turns: Sequence[Sent]) -> set[int]:
    """Tokens of one prompt, as the server counted them."""
    return {one.usage.prompt_tokens for one in turns if one.usage.prompt_tokens is not None}


def _are_counted_without_found(turns: Sequence[Sent]) -> bool:
    """Whether the counts of one prompt differ as where a server counts only what it computed: a repeat by what it says it found,
    or by half at least; by anything where the server shows that equal prompts reached it."""
    first, is_shown = turns[0].usage.prompt_tokens, all(one.prompt_ids is not None for one in turns)
    later = [(one.usage.prompt_tokens, one.usage.cached_tokens or 0) for one in turns if one.usage.prompt_tokens is not None]
    return first is not None and all(
        count == first or count + found == first or 2 * count <= first or (is_shown and count < first) for count, found in later
    )


def _compares(turns: Sequence[Sent]) -> bool:
    is_counted = all(one.usage.prompt_tokens is not None for one in turns)
    return all(one.prompt_ids is not None for one in turns) or (is_counted and len(_counts(turns)) == 1)


def _misses(seen: Observations, turns: Sequence[Sent]) -> bool:
    """Whether the later ones of these, long enough to find something, all found nothing but what stands in front."""
    explanation, later = seen.explanation, turns[1:]
    if explanation is None or not later or any(one.cached is None or one.length is None for one in later):
        return False
    return max(one.cached for one in later) <= seen.new_prompts.standing_front and later[-1].length >= explanation.shortest_hit


def _front_evidence(seen: Observations) -> tuple[str, ...]:
    lines = []
    pairs = sorted(
        {(one.num_ids, one.usage.prompt_tokens) for one in seen.of(*OF_REPEATS) if one.num_ids and one.usage.prompt_tokens}
    )
    if pairs and seen.form == "ids":
        shown = ", ".join(f"{sent:,} → {counted:,}" for sent, counted in pairs[:4])
        lines.append(f"token ids sent → prompt_tokens counted: {shown}")
    texts = seen.of(TEXT)
    if texts:
        by = "" if seen.tokenized is None else f", {seen.tokenized:,} by /tokenize"
        lines.append(
            f"one text: {numbers(one.length for one in texts)} tokens{by}; {numbers(one.cached for one in texts)} cached"
        )
    return tuple(lines)
