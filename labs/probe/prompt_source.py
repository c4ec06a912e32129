"""PromptSource: new prompts that nobody sent before, in the form that the server takes.

    ids      random token ids below a safe bound            exact
    words    random words, each proven to be one token      exact
    text     random common words                            the server alone knows how many tokens they are
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from labs.servers.prompt_form import PromptForm, find_prompt_form
from labs.servers.server_client import ServerClient
from labs.servers.server_facts import ServerFacts
from labs.system_prompt import SYSTEM_PROMPT, USER_DETAILS, USER_OPENINGS
from labs.targets.base import TargetUnavailable

TOKENS_PER_WORD = 1.5  # until the server has counted some
TEMPLATE_RESERVE = 64  # tokens that a chat template may put around a message, where nothing was counted yet
TEXT_SHARE = 0.8  # of the room that is left, since a text's tokens are only estimated
MIN_WORDS_APART = 8  # of two texts whose counts tell what a word costs, and what stands in front


@dataclass(frozen=True)
class Prompt:
    """One prompt: what is sent, and of how many tokens it is."""

    number: int
    ids: tuple[int, ...] = field(repr=False)  # of its form: token ids, or numbers of words
    num_ids: int | None  # tokens; None where they are not known


class PromptSource:
    """Makes prompts. No two of them begin alike, as long as the vocabulary lasts.

    form  "ids", "words" or "text"
    """

    def __init__(self, form: PromptForm | None, rng: random.Random) -> None:
        self.form = "text" if form is None else "ids" if form.is_exact_ids else "words"
        words = common_words()
        self._form = PromptForm(len(words) - 1, words=words) if form is None else form
        self._rng = rng
        self._num_made = 0
        self._tokens_per_word = TOKENS_PER_WORD
        self._num_front = 0  # tokens in front of a text, at most
        self._counted: dict[str, dict[int, int]] = {}  # by endpoint: words -> tokens, as the server counted them
        self._openings: list[int] = []

    @classmethod
    def find(cls, client: ServerClient, facts: ServerFacts, rng: random.Random) -> PromptSource:
        """In the exact form that the server takes; in words that only it can count where none is exact. Raises TargetError."""
        try:
            return cls(find_prompt_form(client, facts), rng)
        except TargetUnavailable:
            return cls(None, rng)

    def fresh(self, num_tokens: int) -> Prompt:
        """A prompt of that many tokens, or words, that nothing sent so far begins like."""
        return self.fresh_ids(self._num_ids(num_tokens))

    def fresh_ids(self, number: int) -> Prompt:
        """The same of so many ids, or words."""
        opening = self._opening()
        return self._made((opening, *self._rng.choices(range(self._form.vocab_size), k=number - 1)))

    def with_front(self, front: Prompt, num_shared: int) -> Prompt:
        """Another prompt as long as `front` that begins with as many of its ids, or words, and then differs at once."""
        size = self._form.vocab_size
        parting = (front.ids[num_shared] + 1 + self._rng.randrange(size - 1)) % size  # any id but that one
        rest = self._rng.choices(range(size), k=len(front.ids) - num_shared - 1)
        return self._made((*front.ids[:num_shared], parting, *rest))

    def payload(self, prompt: Prompt) -> list[int] | str:
        """The request's `prompt`."""
        return self._form.payload(prompt.ids)

    def text(self, num_tokens: int) -> str:
        """A text of common words, of about that many tokens, for chat."""
        return self.words(self._num_words(num_tokens))

    def words(self, number: int) -> str:
        """A text of so many common words."""
        return " ".join(self._rng.choices(common_words(), k=number))

    def as_text(self, prompt: Prompt) -> str:
        """The prompt as a chat message."""
        return str(self._form.payload(prompt.ids))

    def learn(self, endpoint: str, num_words: int, num_tokens: int) -> None:
        """How many tokens some common words are, as the server counts them, with what it puts in front there.

        One text tells no more than a bound; two of different lengths tell what a word costs, and the rest stands in front.
        """
        counted = self._counted.setdefault(endpoint, {})
        counted[num_words] = num_tokens
        few, many = min(counted), max(counted)
        if many - few >= MIN_WORDS_APART:
            self._tokens_per_word = max(1.0, (counted[many] - counted[few]) / (many - few))
        else:
            self._tokens_per_word = min(self._tokens_per_word, max(1.0, num_tokens / num_words))
        fronts = [tokens - words * self._tokens_per_word for known in self._counted.values() for words, tokens in known.items()]
        self._num_front = max(0, round(max(fronts)))

    @property
    def num_front(self) -> int:
        """About how many tokens stand in front of a text, where the server alone counts; 0 for exact prompts."""
        return self._num_front if self.form == "text" else 0

    def within(self, most: int) -> int:
        """Tokens that a text of common words may have where a request may have `most`: its front, and words that are longer
        than others, must fit as well."""
        return max(2, int((most - self._num_front - TEMPLATE_RESERVE) * TEXT_SHARE))

    def tokens_of(self, num_words: int) -> int:
        """About how many tokens so many common words are."""
        return round(num_words * self._tokens_per_word)

    def most_of(self, text: str) -> int:
        """Tokens that a text can be at most, with what a template puts around it: a token holds at least a byte."""
        return len(text.encode()) + self._num_front + TEMPLATE_RESERVE

    def _num_words(self, num_tokens: int) -> int:
        return max(2, round(num_tokens / self._tokens_per_word))

    def _num_ids(self, num_tokens: int) -> int:
        """Of its form: words stand for more than a token each where the server alone counts."""
        return self._num_words(num_tokens) if self.form == "text" else num_tokens

    def number(self) -> int:
        """The number of a prompt that somebody else made."""
        self._num_made += 1
        return self._num_made

    def _made(self, ids: tuple[int, ...]) -> Prompt:
        return Prompt(self.number(), ids, None if self.form == "text" else len(ids))

    def _opening(self) -> int:
        if not self._openings:
            self._openings = self._rng.sample(range(self._form.vocab_size), min(self._form.vocab_size, 1_024))
        return self._openings.pop()


def common_words() -> tuple[str, ...]:
    """Some hundred short words, each once."""
    text = " ".join((SYSTEM_PROMPT, *USER_OPENINGS, *USER_DETAILS)).lower()
    return tuple(dict.fromkeys(word for word in re.findall(r"[a-z]+", text) if 2 <= len(word) <= 7))
