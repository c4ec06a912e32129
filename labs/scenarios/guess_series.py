"""GuessSeries: a neighbour's guesses, each with its prediction.

    whole prompts    was this one sent? hits, and the AUC of a neighbour who has a clock alone
    next tokens      what one right token, or a whole block of them, adds to the hits
    recovery         a secret read one token after the other
"""

from __future__ import annotations

from engine import cost_model
from labs import theory
from labs.caches import Cache
from labs.measure import auc
from labs.protocol import LabSession, Measurement, Prediction
from labs.scenarios.prompt_guesses import (
    GUESSES,
    TICK_DIGITS,
    Arm,
    PromptGuesses,
    WholeGuesses,
    guess_prompts,
    guess_tokens,
    hits_of,
    probe,
)  # fmt: skip
from labs.targets.base import Target
from labs.witnesses import counted_beside

RIGHT, CONTROL = GUESSES
FEWEST_TRIALS = 7  # with fewer, even times that never mix may be chance


def measure_prompts(
    session: LabSession, target: Target, cache: Cache, arm: Arm, guesses: PromptGuesses, seed: int
) -> tuple[WholeGuesses, list[Measurement]]:
    """Guess whole prompts: hits by the laws, and how well times tell the right guess from the control."""
    group, length = f"{cache.title}: was this prompt sent?", len(guesses.victims[0])
    repeat, miss = cache.laws.predict(theory.repeat, length), cache.laws.predict(theory.reuse, 0, length)
    right, num_trials = repeat if arm.shares_cache else miss, len(guesses.victims)
    auc_law = _predict_auc(target, int(right.value), length, num_trials)
    answers, found = guess_prompts(session, target, cache.title, arm, guesses, seed), []
    for guess, law in ((RIGHT, right), (CONTROL, miss)):
        row, completions = f"{arm.title}: {guess}", answers.answers[guess]
        found += _hits(group, row, hits_of(completions), law, is_key=guess == RIGHT)
        due = Prediction(len(completions) * law.value, f"{len(completions)} times that")
        found += counted_beside(group, row, completions, due)
        if guess == RIGHT and num_trials >= FEWEST_TRIALS:
            area = auc(answers.quickness(RIGHT), answers.quickness(CONTROL))
            found.append(Measurement("auc", "ratio", (area,), group, row, auc_law, note=_clock_note(target), key=True))
        found.append(Measurement("ttft", "s", tuple(one.ttft_s for one in completions), group, row))
    for row, hits, law in (
        ("first token wrong", answers.near, miss), ("the victim, first time", answers.firsts, miss),
        ("the victim, again", answers.repeats, repeat),
    ):  # fmt: skip
        found += _hits(group, f"{arm.title}: {row}", hits, law)
    session.record(*found)
    return answers, found


def _hits(group: str, row: str, hits: tuple[int, ...], law: Prediction, is_key: bool = False) -> list[Measurement]:
    """What requests found; nothing where a server told of none."""
    return [Measurement("hits", "tokens", hits, group, row, law, key=is_key)] if hits else []


def _predict_auc(target: Target, hits: int, length: int, num_trials: int) -> Prediction | None:
    """Exact where equal work takes equal time; on a real clock the range of chance, or all above it.

    None on a server: its other work, its other users and the way there are part of each time.
    """
    if target.engine is None:
        return None
    value, text = theory.predict(theory.guess_auc, _work(target, hits, length), _work(target, 0, length))
    if target.info.kind == "sim":
        return Prediction(value, text)
    spread, how = theory.predict(theory.chance_auc_spread, num_trials, num_trials)
    if value > 0.5:
        return Prediction(value, f"{text}; beyond chance, 1/2 ± {how}", 0.5 + spread, 1.0)
    return Prediction(value, f"{text}; within chance, 1/2 ± {how}", 0.5 - spread, 0.5 + spread)


def _work(target: Target, start: int, end: int) -> float:
    """What computing tokens [start, end) costs: seconds of the simulated GPU; where no clock is known, tokens."""
    runner = target.engine.runner
    if not runner.is_simulated:
        return end - start
    seconds = cost_model.step_seconds(runner.shape, runner.gpu, runner.mfu, [(start, end)], runner.dtype_bytes)
    return round(seconds, TICK_DIGITS)


def _clock_note(target: Target) -> str:
    if target.engine is None:
        return "not judged on a server, whose load and the way there are part of each time; it proves no isolation, the hits do"
    if target.info.kind == "sim":
        return "the clock is the cost model's, where equal work takes equal time: this AUC checks the accounting, not physics"
    return "an AUC of 1/2 is what these trials could not tell apart; it proves no isolation, the hits do"


def measure_next_tokens(session: LabSession, target: Target, cache: Cache, arm: Arm, guesses: PromptGuesses) -> list[Measurement]:
    """What the cache answers to the next token, wrong and right, and to a whole block."""
    group, unit = f"{cache.title}: what comes next?", cache.unit
    known, secret = guesses.aligned_known(unit, cache.num_front), guesses.secret
    wrong = next(candidate for candidate in guesses.candidates if candidate != secret[0])
    tails = {"next token wrong": (wrong,), "next token right": secret[:1]}
    if 1 < unit <= len(secret):
        tails[f"next {unit} tokens right"] = secret[:unit]
    target.complete(guesses.victim_prompt(unit, cache.num_front), cache_salt=arm.victim_salt)
    session.progress(f"{cache.title}: the victim's prompt")
    found = []
    for row, tail in tails.items():
        num_right = 0 if tail[0] == wrong else len(tail)
        prompt = (*known, *tail, guesses.filler)
        law = cache.laws.predict(theory.reuse, len(known) + num_right, len(prompt))
        hits = probe(session, target, cache.title, arm, prompt)
        found.append(Measurement("hits", "tokens", (hits,), group, row, law, key=row != "next token wrong"))
    session.record(*found)
    return found


def measure_recovery(session: LabSession, target: Target, cache: Cache, arm: Arm, guesses: PromptGuesses) -> list[Measurement]:
    """Guess one token after the other: tokens found, and requests it took."""
    group, row = f"{cache.title}: what comes next?", f"one by one: {arm.title}"
    num_secret, num_candidates = len(guesses.secret), len(guesses.candidates)
    tokens = theory.predict(theory.tokens_guessed_singly, num_secret, cache.unit, int(arm.shares_cache))
    requests = theory.predict(theory.single_token_guesses, num_candidates, tokens.value, num_secret)
    result = guess_tokens(session, target, cache, arm, guesses)
    found = [
        Measurement("found", "tokens", (result.num_found,), group, row, Prediction(*tokens), key=arm.shares_cache),
        Measurement("sent", "requests", (result.num_requests,), group, row, Prediction(*requests), key=arm.shares_cache),
    ]
    session.record(*found)
    return found
