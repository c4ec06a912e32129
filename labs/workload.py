"""Workload: the prompts of a lab, from a seed, at exact token counts.

A shared-prefix workload is the shape of a deployment with a long system prompt:

    0                           P                         P + U
    ├── shared_ids ─────────────┼── tail_ids[i] ────────────┤     one prompt per request
    │   the same for all        │   differs from its first  │
    │   (system text, template) │   token on (user, template)

Beside the prompts it brings what the controls need: unrelated prompts of the same length, single tokens to prepend
or append, and a canary prompt that shares its first token with none of the others, so that it can prove a cache
cold without touching what is measured.

With a tokenizer that has a chat template, prompts are real text and their ids are those a server would compute from
it; without one, they are random ids. The same arguments give the same ids.
"""

from __future__ import annotations

import hashlib
import random
import re
import struct
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Callable, Iterable, Iterator, Mapping, NoReturn, Protocol, Sequence

from engine.errors import ConfigError
from labs.system_prompt import SYSTEM_PROMPT, UNRELATED_PATTERNS, UNRELATED_THEMES, USER_DETAILS, USER_OPENINGS

NUM_CANARY_TOKENS = 48  # three blocks of 16: long enough to be a hit, short beside any prompt

TokenIds = tuple[int, ...]


class ChatTokenizer(Protocol):
    """What text prompts need of a tokenizer (engine/model/tokenizer.py has it).

    `encode` adds no tokens of its own and reads special tokens from the text.
    """

    vocab_size: int
    has_chat_template: bool

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def render_chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str: ...


@dataclass(frozen=True)
class SharedPrefixWorkload:
    """Prompts with a common head, and the controls for them; all as token ids."""

    shared_ids: TokenIds  # exactly num_shared: everything the requests have in common, template included
    tail_ids: tuple[TokenIds, ...]  # one a request, exactly num_tail each; first tokens pairwise different
    unrelated_ids: tuple[TokenIds, ...]  # whole prompts of the same length; common to them is the template's head only
    marker_ids: TokenIds  # ordinary tokens, pairwise different; none begins a prompt or a tail
    canary_ids: TokenIds  # NUM_CANARY_TOKENS; begins like no prompt and no marker

    @classmethod
    def from_token_ids(
        cls,
        vocab_size: int,
        seed: int,
        num_shared: int,
        num_tail: int,
        num_requests: int,
        num_unrelated: int = 1,
        num_markers: int = 0,
    ) -> SharedPrefixWorkload:
        """Random ids below `vocab_size`, for models without text. Raises ConfigError for an impossible size."""
        _check_counts(num_shared, num_tail, num_requests, num_unrelated, num_markers)
        num_first_tokens = 2 + num_requests + num_unrelated + num_markers
        if vocab_size < num_first_tokens:
            _refuse("vocab_size", vocab_size, f"at least {num_first_tokens}: that many tokens must differ pairwise")
        rng = random.Random(seed)
        firsts = iter(rng.sample(range(vocab_size), num_first_tokens))

        def prompt(num_tokens: int) -> TokenIds:
            return (next(firsts), *(rng.randrange(vocab_size) for _ in range(num_tokens - 1)))

        return cls(
            shared_ids=prompt(num_shared),
            tail_ids=tuple(prompt(num_tail) for _ in range(num_requests)),
            unrelated_ids=tuple(prompt(num_shared + num_tail) for _ in range(num_unrelated)),
            marker_ids=tuple(islice(firsts, num_markers)),
            canary_ids=prompt(NUM_CANARY_TOKENS),
        )

    @classmethod
    def from_text(
        cls,
        tokenizer: ChatTokenizer,
        seed: int,
        num_shared: int,
        num_tail: int,
        num_requests: int,
        num_unrelated: int = 1,
        num_markers: int = 0,
    ) -> SharedPrefixWorkload:
        """Real text in the model's chat template: labs/system_prompt.py, cut to the sizes asked for.

        Raises ConfigError (a ValueError) for an impossible size, naming the accepted range, and ValueError for a
        tokenizer that has no chat template or does not read a prompt as its two parts one after the other.
        """
        _check_counts(num_shared, num_tail, num_requests, num_unrelated, num_markers)
        _check_range("num_requests", num_requests, 1, len(USER_OPENINGS))
        _check_range("num_unrelated", num_unrelated, 0, len(UNRELATED_THEMES))
        if not tokenizer.has_chat_template:
            raise ValueError("the tokenizer has no chat template; accepted: one with, or random ids (from_token_ids)")
        rng = random.Random(seed)
        chat = _Chat(tokenizer)
        system_text = chat.fit_system(SYSTEM_PROMPT.split(" "), num_shared)
        openings = rng.sample(USER_OPENINGS, num_requests)
        user_texts = [chat.fit_user(_user_words(rng, opening), num_tail) for opening in openings]
        themes = rng.sample(UNRELATED_THEMES, num_unrelated)
        other_texts = [chat.fit_system(_unrelated_words(rng, theme, num_shared), num_shared) for theme in themes]

        shared_ids = chat.ids(system_text, user_texts[0])[:num_shared]
        tail_ids = tuple(chat.ids(system_text, text, shared_ids)[num_shared:] for text in user_texts)
        unrelated_ids = tuple(chat.ids(text, user) for text, user in zip(other_texts, cycle(user_texts)))
        _check_differ([ids[0] for ids in tail_ids], "user turns")
        head_tokens = min((_num_common(shared_ids, ids) for ids in unrelated_ids), default=0)
        _check_differ([ids[head_tokens] for ids in (shared_ids, *unrelated_ids)], "unrelated prompts")

        taken = {shared_ids[0], *(ids[0] for ids in (*tail_ids, *unrelated_ids))}
        words = _single_words(tokenizer, rng, taken)
        canary_first = next(words, None)
        if canary_first is None:
            raise ValueError("the vocabulary has no word of one token for the canary; accepted: one with words")
        canary_ids = _canary(tokenizer, rng, canary_first)
        markers = tuple(islice((token_id for token_id in words if token_id != canary_first), num_markers))
        if len(markers) < num_markers:
            _refuse("num_markers", num_markers, f"a whole number from 0 to {len(markers)}")
        return cls(shared_ids, tail_ids, unrelated_ids, markers, canary_ids)

    @property
    def prompts(self) -> tuple[TokenIds, ...]:
        """The whole prompt of each request, num_shared + num_tail tokens."""
        return tuple(self.shared_ids + tail for tail in self.tail_ids)

    @property
    def digest(self) -> str:
        """Names all ids of the workload, so that two records can be known to have sent the same; holds no text."""
        return workload_digest(
            [(self.shared_ids,), self.tail_ids, self.unrelated_ids, (self.marker_ids,), (self.canary_ids,)]
        )


def repeated_prompts(
    vocab_size: int, seed: int, num_prompts: int, prompt_tokens: int, repeat_count: int
) -> tuple[TokenIds, ...]:
    """`num_prompts` random prompts, each `repeat_count` times, shuffled; no two prompts begin with the same token.

    Returns num_prompts · repeat_count prompts of `prompt_tokens` ids. Raises ConfigError for an impossible size.
    Source of the protocol: vLLM, benchmarks/benchmark_prefix_caching.py.
    """
    _check_range("prompt_tokens", prompt_tokens, 1)
    _check_range("repeat_count", repeat_count, 1)
    _check_range("num_prompts", num_prompts, 1, vocab_size)
    rng = random.Random(seed)
    firsts = rng.sample(range(vocab_size), num_prompts)
    prompts = [(first, *(rng.randrange(vocab_size) for _ in range(prompt_tokens - 1))) for first in firsts]
    repeated = prompts * repeat_count
    rng.shuffle(repeated)
    return tuple(repeated)


def workload_digest(groups: Iterable[Sequence[Sequence[int]]]) -> str:
    """SHA-256, hexadecimal, of groups of prompts; every length is part of it, so that no boundary can move."""
    digest = hashlib.sha256()
    for prompts in groups:
        digest.update(struct.pack("<Q", len(prompts)))
        for token_ids in prompts:
            digest.update(struct.pack(f"<Q{len(token_ids)}I", len(token_ids), *token_ids))
    return digest.hexdigest()


class _Chat:
    """Renders a system text and a user's turn, and cuts either to a number of tokens."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self.tokenizer = tokenizer

    def split(self, system_text: str, user_text: str) -> tuple[str, str]:
        """The rendered prompt in two: up to the user's own text, and from it on."""
        messages = [{"role": "system", "content": system_text}, {"role": "user", "content": user_text}]
        rendered = self.tokenizer.render_chat(messages, add_generation_prompt=True)
        at = rendered.rfind(user_text)
        if at < 0 or system_text not in rendered[:at]:
            raise ValueError("the chat template changes the texts it is given; accepted: one that keeps them")
        return rendered[:at], rendered[at:]

    def ids(self, system_text: str, user_text: str, expected_head: TokenIds = ()) -> TokenIds:
        """Ids of the whole rendered text, checked to be those of its two parts, one after the other."""
        head, tail = self.split(system_text, user_text)
        whole = tuple(self.tokenizer.encode(head + tail))
        parts = (*self.tokenizer.encode(head), *self.tokenizer.encode(tail))
        if whole != parts or whole[: len(expected_head)] != expected_head:
            raise ValueError("the tokenizer joins tokens across the start of the user's text; accepted: one that does not")
        return whole

    def fit_system(self, words: Sequence[str], num_tokens: int) -> str:
        """A system text with which everything before the user's text is `num_tokens` long."""
        return _fit("num_shared", words, num_tokens, lambda text: self._count(self.split(text, USER_OPENINGS[0])[0]))

    def fit_user(self, words: Sequence[str], num_tokens: int) -> str:
        """A user's text that is `num_tokens` long together with the template after it."""
        return _fit("num_tail", words, num_tokens, lambda text: self._count(self.split("Be brief.", text)[1]))

    def _count(self, text: str) -> int:
        return len(self.tokenizer.encode(text))


def _fit(field: str, words: Sequence[str], num_tokens: int, count: Callable[[str], int]) -> str:
    """The most words, padded with short ones, whose text `count` measures as exactly `num_tokens`."""
    low, high = 1, len(words)
    fewest, most = count(words[0]), count(" ".join(words))
    if not fewest <= num_tokens <= most:
        _refuse(field, num_tokens, f"a whole number from {fewest} to {most} with this tokenizer")
    while low < high:  # the last number of words that is not too long
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(" ".join(words[:middle])) <= num_tokens else (low, middle - 1)
    for num_words in range(low, max(0, low - 8), -1):
        text = " ".join(words[:num_words])
        num_missing = num_tokens - count(text)
        for padding in (" ok", " so", " a", "."):
            padded = text + padding * num_missing
            if count(padded) == num_tokens:
                return padded
    _refuse(field, num_tokens, f"another number from {fewest} to {most}; this one falls inside a word")


def _user_words(rng: random.Random, opening: str) -> list[str]:
    return " ".join([opening, *rng.sample(USER_DETAILS, len(USER_DETAILS))]).split(" ")


def _unrelated_words(rng: random.Random, theme: tuple, num_words: int) -> list[str]:
    """At least `num_words` words of sentences on one theme: more tokens than that, in any tokenizer."""
    opening, actors, things, place = theme
    words = opening.split(" ")
    while len(words) < num_words:
        sentence = rng.choice(UNRELATED_PATTERNS).format(
            who=rng.choice(actors), what=rng.choice(things), where=place, count=rng.randrange(2, 60)
        )
        words += (sentence[0].upper() + sentence[1:]).split(" ")
    return words


def _single_words(tokenizer: ChatTokenizer, rng: random.Random, taken: set[int]) -> Iterator[int]:
    """Ids of ordinary words of one token, in seeded order, without those taken."""
    # Drawn one at a time: sorting out a whole vocabulary would take longer than the lab.
    for token_id in rng.sample(range(tokenizer.vocab_size), tokenizer.vocab_size):
        if token_id not in taken:
            text = tokenizer.decode([token_id])
            # Letters only: a special token decodes to nothing or to a name in brackets. Encoded again it must be
            # itself, else a server would read the text as other tokens.
            if re.fullmatch("[A-Za-z]{2,}", text) and list(tokenizer.encode(text)) == [token_id]:
                yield token_id


def _canary(tokenizer: ChatTokenizer, rng: random.Random, first_token: int) -> TokenIds:
    """Plain text without a template, on its own theme, beginning with a word no prompt begins with."""
    words = [tokenizer.decode([first_token]), *_unrelated_words(rng, UNRELATED_THEMES[0], NUM_CANARY_TOKENS)]
    text = _fit("canary", words, NUM_CANARY_TOKENS, lambda text: len(tokenizer.encode(text)))
    return tuple(tokenizer.encode(text))


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    return next((at for at, (one, other) in enumerate(zip(first, second)) if one != other), len(first))


def _check_differ(token_ids: Sequence[int], what: str) -> None:
    if len(set(token_ids)) < len(token_ids):
        raise ValueError(f"two {what} begin with the same token; accepted: another tokenizer, or fewer of them")


def _check_counts(num_shared: int, num_tail: int, num_requests: int, num_unrelated: int, num_markers: int) -> None:
    _check_range("num_shared", num_shared, 1)
    _check_range("num_tail", num_tail, 1)
    _check_range("num_requests", num_requests, 1)
    _check_range("num_unrelated", num_unrelated, 0)
    _check_range("num_markers", num_markers, 0)


def _check_range(field: str, value: int, low: int, high: int | None = None) -> None:
    if value < low or (high is not None and value > high):
        _refuse(field, value, f"a whole number from {low}" + (f" to {high}" if high is not None else ""))


def _refuse(field: str, value: object, accepted: str) -> NoReturn:
    raise ConfigError(field, value, accepted)
