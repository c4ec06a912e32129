"""IdentityPrompts: prompts that differ in their first block alone, so that a wrong key can confuse them.

    0          head_tokens                                    num_tokens
    ├── head ──┼── body ─────────────────────────────────────┤
    │ who says │ the same for all: it ends with the question who it was

With a tokenizer of text the head is a name said again and again, and the model answers with it: whoever is served the K/V
of another head answers with another's name. Without one, head and body are random ids.
"""

from __future__ import annotations

import random
from itertools import cycle, islice
from typing import Any

from engine.errors import ConfigError
from labs.workload import NUM_CANARY_TOKENS, TokenIds, workload_digest

# Short and common, so that a small model says them again.
NAMES = (
    "Adam", "Alice", "Anna", "Apple", "Brian", "Carl", "Clara", "David", "Emma", "Frank", "George", "Grace", "Henry", "Irene",
    "Jack", "James", "Jane", "John", "Julia", "Kate", "Laura", "Leo", "Lily", "Mark", "Mary", "Max", "Nina", "Oscar", "Paul",
    "Peter", "River", "Robert", "Rose", "Ruth", "Sam", "Sarah", "Simon", "Sophie", "Stone", "Thomas", "Tom", "Victor", "William",
)  # fmt: skip
HEAD = " {name} is my name. My name is"
BODY = "We met in the office yesterday, and it was raining. You asked me for the time.\n"
QUESTION = "Do you remember me? My name is"


class IdentityPrompts:
    """Prompts by their number; the same arguments give the same ids.

    tokenizer    the target's; None, or one without a chat template: random ids
    vocab_size   ids of the model
    num_tokens   of a prompt
    head_tokens  of its head: one block

    Raises ConfigError for a prompt too short for the question.
    """

    def __init__(self, tokenizer: Any | None, vocab_size: int, num_tokens: int, head_tokens: int, seed: int) -> None:
        self.has_text = tokenizer is not None and tokenizer.has_chat_template
        self._tokenizer, self._seed = tokenizer, seed
        # The last id is the canary's: no prompt begins with it.
        self._num_ids = vocab_size - 1
        self._head_tokens = head_tokens
        self._order = random.Random(f"names {seed}").sample(range(len(NAMES)), len(NAMES))
        self._body = self._make_body(num_tokens - head_tokens)
        self.canary_ids: TokenIds = (self._num_ids,) * NUM_CANARY_TOKENS

    def prompt(self, number: int) -> TokenIds:
        """[num_tokens] ids; two numbers have two heads."""
        if not self.has_text:
            return (*self._random_ids(f"head {number}", self._head_tokens), *self._body)
        said = self._tokenizer.encode(HEAD.format(name=self.name(number)))
        return (*islice(cycle(said), self._head_tokens), *self._body)

    def name(self, number: int) -> str:
        """Who speaks in a prompt of text."""
        rounds, at = divmod(number, len(NAMES))
        first = NAMES[self._order[at]]
        return first if not rounds else f"{first} {NAMES[self._order[(at + rounds) % len(NAMES)]]}"

    def digest(self, count: int) -> str:
        """Names the ids of the first `count` prompts; holds no text."""
        return workload_digest([[self.prompt(number) for number in range(count)], [self.canary_ids]])

    def _make_body(self, num_tokens: int) -> TokenIds:
        if not self.has_text:
            return self._random_ids("body", num_tokens)
        filler, question = self._tokenizer.encode(BODY), self._tokenizer.encode(QUESTION)
        if num_tokens < len(question):
            given, least = self._head_tokens + num_tokens, self._head_tokens + len(question)
            raise ConfigError("prompt_tokens", given, f"at least {least} with this block size and tokenizer")
        return (*islice(cycle(filler), num_tokens - len(question)), *question)

    def _random_ids(self, what: str, count: int) -> TokenIds:
        rng = random.Random(f"{what} {self._seed}")
        return tuple(rng.randrange(self._num_ids) for _ in range(count))
