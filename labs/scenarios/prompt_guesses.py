"""PromptGuesses: what a neighbour who shares a prefix cache can ask it, and what the answers tell.

    whole prompts   victim sends │ the neighbour sends, in random order: the same prompt (right guess),
                    a prompt     │ and an unrelated one of that length (control)

    next token      known prefix │ guess │ filler      found beyond what is known: the guess is right
                    K whole blocks               the filler is no candidate, so no probe ever looks like a right guess

What the neighbour sees is the time to the first token. Hits are read from the engine's accounting, which a server may
also report (`cached_tokens`), and then no clock is needed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Sequence

from engine.errors import ConfigError
from labs import theory
from labs.caches import Cache
from labs.protocol import LabSession
from labs.targets.base import Completion, Target, TargetError
from labs.witnesses import Doubt, disagreements
from labs.workload import TokenIds

GUESSES = ("right guess", "unrelated (control)")
TICK_DIGITS = 9  # of seconds: what differs by less than a nanosecond differs by the clock's own rounding, and is a tie


@dataclass(frozen=True)
class Arm:
    """Who shares a cache: victim and neighbour, each with a salt or none."""

    title: str  # "no salts"
    victim_salt: str | None = field(repr=False)
    neighbour_salt: str | None = field(repr=False)

    @property
    def shares_cache(self) -> bool:
        return self.victim_salt == self.neighbour_salt


@dataclass(frozen=True)
class PromptGuesses:
    """All prompts, as token ids, from a seed; none begins with the vocabulary's last id, which is the canary's."""

    victims: tuple[TokenIds, ...]  # one a trial; first tokens pairwise different, those of the others included
    controls: tuple[TokenIds, ...]  # unrelated, of the same length
    near: TokenIds  # the first victim's prompt but for its first token
    candidates: TokenIds  # what a secret token may be
    known: TokenIds  # a prefix that the neighbour knows; its first K tokens are used, K a multiple of the unit
    secret: TokenIds  # what follows it, of candidates
    filler: int

    @classmethod
    def from_seed(
        cls,
        seed: int,
        vocab_size: int,
        *,
        num_trials: int,
        prompt_tokens: int,
        num_candidates: int,
        num_known: int,
        num_secret: int,
    ) -> PromptGuesses:
        """Raises ConfigError when the vocabulary is too small."""
        rng, last = random.Random(f"guesses {seed}"), vocab_size - 1
        if 2 * num_trials + 2 > last:
            raise ConfigError("num_trials", num_trials, f"at most {(last - 2) // 2} with this model's vocabulary")
        if num_candidates + 1 > last:
            raise ConfigError("num_candidates", num_candidates, f"at most {last - 1} with this model's vocabulary")
        firsts = iter(rng.sample(range(last), 2 * num_trials + 2))

        def tail(num_tokens: int) -> TokenIds:
            return tuple(rng.randrange(last) for _ in range(num_tokens))

        victims = tuple((next(firsts), *tail(prompt_tokens - 1)) for _ in range(num_trials))
        controls = tuple((next(firsts), *tail(prompt_tokens - 1)) for _ in range(num_trials))
        near = (next(firsts), *victims[0][1:])
        *candidates, filler = rng.sample(range(last), num_candidates + 1)
        known = (next(firsts), *tail(num_known - 1))
        secret = tuple(rng.choice(candidates) for _ in range(num_secret))
        return cls(victims, controls, near, tuple(candidates), known, secret, filler)

    @property
    def prompts(self) -> tuple[tuple[TokenIds, ...], ...]:
        """All of them, in groups, for the workload's digest."""
        return (self.victims, self.controls, (self.near, self.known, self.secret, (self.filler, *self.candidates)))

    def first(self, num_trials: int) -> PromptGuesses:
        """The same with fewer trials."""
        return replace(self, victims=self.victims[:num_trials], controls=self.controls[:num_trials])

    def aligned_known(self, unit: int, num_front: int = 0) -> TokenIds:
        """The known prefix of whole blocks, with what a server puts in front: the next token is the first of a block."""
        return self.known[: max(0, (len(self.known) + num_front) // unit * unit - num_front)]

    def victim_prompt(self, unit: int, num_front: int = 0) -> TokenIds:
        """Known and secret tokens, and one more: a match never ends with the last."""
        return (*self.aligned_known(unit, num_front), *self.secret, self.filler)


@dataclass(frozen=True)
class WholeGuesses:
    """Answers to guesses of whole prompts, by GUESSES, one a trial; what the victim and the near guess found beside them."""

    answers: dict[str, list[Completion]]
    firsts: tuple[int, ...]  # tokens found by the victim's prompt, before anybody guesses
    repeats: tuple[int, ...]  # and again: what his cache still gives him
    near: tuple[int, ...]  # by the guess with the wrong first token
    doubts: tuple[Doubt, ...] = ()  # of a server whose witnesses disagree

    def quickness(self, guess: str) -> list[float]:
        """Larger is sooner; times a clock cannot tell apart are equal."""
        return [-round(answer.ttft_s, TICK_DIGITS) for answer in self.answers[guess]]


def guess_prompts(session: LabSession, target: Target, label: str, arm: Arm, guesses: PromptGuesses, seed: int) -> WholeGuesses:
    """Each trial: the victim sends a prompt, the neighbour both guesses, the victim the same again; at the end the near guess."""
    rng = random.Random(f"order {seed}")
    answers: dict[str, list[Completion]] = {guess: [] for guess in GUESSES}
    firsts, repeats = [], []
    target.counters()
    for victim, control in zip(guesses.victims, guesses.controls):
        firsts.append(target.complete(victim, cache_salt=arm.victim_salt))
        prompts = dict(zip(GUESSES, (victim, control)))
        # A drifting machine must not make one kind of guess look slow.
        for guess in rng.sample(GUESSES, len(GUESSES)):
            answers[guess].append(target.complete(prompts[guess], cache_salt=arm.neighbour_salt))
        repeats.append(target.complete(victim, cache_salt=arm.victim_salt))
        session.progress(f"{label}, {arm.title}: guessing prompts", 4)
    near = [target.complete(guesses.near, cache_salt=arm.neighbour_salt)]
    session.progress(f"{label}, {arm.title}: a near guess")
    everything = [*firsts, *repeats, *near, *(one for completions in answers.values() for one in completions)]
    counted, reported = target.counters().hits, sum(hits_of(everything))
    if session.open_target.served is None and counted != reported:
        raise TargetError(f"{label}: requests report {reported} cached tokens, the counters say {counted}")
    doubts = tuple(disagreements(f"{label}, {arm.title}", everything))
    return WholeGuesses(answers, hits_of(firsts), hits_of(repeats), hits_of(near), doubts)


def hits_of(completions: Sequence[Completion]) -> tuple[int, ...]:
    """Tokens that each found; without those of which a server does not tell."""
    return tuple(one.num_cached_tokens for one in completions if one.num_cached_tokens is not None)


@dataclass(frozen=True)
class TokenGuesses:
    """What guessing one token after the other found."""

    num_found: int  # secret tokens
    num_requests: int


def guess_tokens(session: LabSession, target: Target, cache: Cache, arm: Arm, guesses: PromptGuesses) -> TokenGuesses:
    """Try every candidate for the next token, keep the one that is found beyond what is known, go on; stop at silence."""
    label, unit, front = cache.title, cache.unit, cache.num_front
    known, num_requests = guesses.aligned_known(unit, front), 0
    # Beside a drafter the last unit of what is known is not found either.
    silence = int(cache.laws.predict(theory.reuse, len(known), len(known) + 2).value)
    target.complete(guesses.victim_prompt(unit, front), cache_salt=arm.victim_salt)
    session.progress(f"{label}, {arm.title}: the victim's prompt")
    for num_found in range(len(guesses.secret)):
        right = None
        for candidate in guesses.candidates:
            num_requests += 1
            if probe(session, target, label, arm, (*known, candidate, guesses.filler)) > silence:
                right = candidate
        if right is None:
            return TokenGuesses(num_found, num_requests)
        known, silence = (*known, right), silence + 1
    return TokenGuesses(len(guesses.secret), num_requests)


def probe(session: LabSession, target: Target, label: str, arm: Arm, prompt: Sequence[int]) -> int:
    """Tokens that the neighbour's prompt finds. Raises TargetError when a server does not tell: silence would be an answer."""
    hits = target.complete(prompt, cache_salt=arm.neighbour_salt).num_cached_tokens
    session.progress(f"{label}, {arm.title}: guessing tokens")
    if hits is None:
        raise TargetError(f"{label}: the server does not tell what a guess found; guesses cannot be told apart")
    return hits
