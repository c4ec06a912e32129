"""PromptStream: random prompts related as those of a server are.

They begin with one of a few texts and leave it at any token, repeat an earlier prompt, go on from an earlier answer, or
have nothing to do with any other.
"""

from __future__ import annotations

import random

LONGEST_PROMPTS = (4, 8, 12)  # blocks
VOCABS = (2, 5, 97, 1_000, 32_000)  # with few different tokens, blocks are equal by chance as well


class PromptStream:
    """Prompts of 1 to `longest` tokens, drawn one after the other.

    longest   tokens
    vocab     token ids are below it
    """

    def __init__(self, rng: random.Random, block_size: int) -> None:
        self._rng, self._block_size = rng, block_size
        self.longest = rng.choice(LONGEST_PROMPTS) * block_size
        self.vocab = rng.choice(VOCABS)
        self._beginnings = [self._random_tokens(rng.randint(2, 8) * block_size) for _ in range(rng.randint(1, 4))]
        self._prompts: list[list[int]] = []
        self._conversations: list[list[int]] = []

    def next_prompt(self) -> list[int]:
        """Token ids of the next prompt, at least one."""
        rng, kind = self._rng, self._rng.random()
        if kind < 0.15 and self._prompts:
            prompt = rng.choice(self._prompts)
        elif kind < 0.40 and self._conversations:
            prompt = rng.choice(self._conversations) + self._random_tokens(rng.randint(1, 2 * self._block_size))
        elif kind < 0.85:
            beginning = rng.choice(self._beginnings)
            # At a block's border as often as anywhere.
            grain = rng.choice((1, self._block_size))
            kept = rng.randint(1, len(beginning) // grain) * grain
            prompt = beginning[:kept] + self._random_tokens(rng.randint(0, 3 * self._block_size))
        else:
            prompt = self._random_tokens(rng.randint(1, 6 * self._block_size))
        if len(prompt) > self.longest:
            prompt = prompt[: rng.randint(self.longest // 2, self.longest)]
        self._prompts.append(prompt)
        return prompt

    def remember(self, token_ids: list[int]) -> None:
        """A prompt with its answer, from which later prompts may go on."""
        self._conversations.append(token_ids)

    def _random_tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(self.vocab) for _ in range(count)]
