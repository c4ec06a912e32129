"""What K/V a position holds, as one small number: equal exactly when identity and all tokens up to it are equal.

Naive on purpose: neither block names nor content ids nor name spaces take part, so none of them can be wrong here too.
"""

from __future__ import annotations

from typing import Any

from engine.kvcache.cache_identity import CacheIdentity, LoRA, MultimodalItem
from engine.request import Request

LORA = LoRA("a", "/1")
IMAGE_X, IMAGE_Y = MultimodalItem("x", 1, 2), MultimodalItem("y", 1, 2)
IDENTITIES: list[dict[str, Any]] = [
    {},
    {"cache_salt": "a"},
    {"cache_salt": "b"},
    {"lora": LORA},
    {"lora": LoRA("a", "/2")},
    {"lora": LoRA("a", "/2"), "cache_salt": "a"},
    {"mm_items": (IMAGE_X,)},
    {"mm_items": (IMAGE_Y,)},
]

# Of one unit each, parting in its first or last token; the last kind is no whole unit unless the unit is one token.
NUM_CHUNK_KINDS = 4


def tokens_of(kinds: list[int], unit: int) -> list[int]:
    chunks = [[1] * unit, [1] * (unit - 1) + [2], [2] * unit, [1]]
    return [token for kind in kinds for token in chunks[kind]]


def with_placeholders(tokens: list[int], fields: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """The tokens with an image's positions filled as a processor fills them; no image where the prompt is too short."""
    if "mm_items" not in fields:
        return tokens, fields
    return (tokens, {}) if len(tokens) < 3 else ([tokens[0], 9, 9, *tokens[3:]], fields)


class Contents:
    """Numbers contents, and keeps whose each was: a trie."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, Any], int] = {}
        self.parents: list[Any] = []

    def of(self, request: Request) -> list[int]:
        """[num_tokens], the content of each position of the request."""
        contents: list[int] = []
        parent: Any = self._root(request.identity)
        for position, token_id in enumerate(request.all_token_ids):
            parent = self._number(parent, self._atom(request.identity, position, token_id))
            contents.append(parent)
        return contents

    def run_up_to(self, content: int, length: int) -> list[int]:
        """The last `length` contents of the prefix that ends with this one."""
        run = [content]
        while len(run) < length:
            run.append(self.parents[run[-1]])
        return run[::-1]

    def _root(self, identity: CacheIdentity) -> tuple[Any, ...]:
        return ("salt", identity.cache_salt, "lora", identity.lora)

    def _atom(self, identity: CacheIdentity, position: int, token_id: int) -> Any:
        for item in identity.mm_items:
            if item.offset <= position < item.offset + item.length:
                return (item.identifier, position - item.offset)
        return token_id

    def _number(self, parent: Any, atom: Any) -> int:
        number = self._numbers.setdefault((parent, atom), len(self.parents))
        if number == len(self.parents):
            self.parents.append(parent)
        return number
