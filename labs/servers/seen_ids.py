"""SeenIds: token ids that a server itself gave for texts. Between the smallest and the largest of them every id is safe to send.

    /tokenize        its ids for varied texts                                    a small request
    a completion     the ids of the same text, or how many they are              another witness: both must agree

A tokenizer that is not the model's (a gateway's, another replica's) may give ids that the model does not have.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Iterable, Mapping, Sequence

from labs.servers.count_request import count_request
from labs.servers.server_client import ServerClient, ServerRefused
from labs.servers.server_facts import ServerFacts
from labs.servers.server_reply import ServerReply

MAX_ID = 2**24  # a tokenizer that gives larger ids is not believed
NUM_COMPARED = 2  # texts whose ids by /tokenize are compared with a completion's account of them

# Scripts, code, digits and symbols: a large vocabulary gives its late ids for rare merges, a small one bytes.
VARIED_TEXTS = (
    "The quick brown fox jumps over 13 lazy dogs; internationalization, photosynthesis and thermodynamics remain.",
    "Unquestionably extraordinary circumstances disproportionately affect misunderstood entrepreneurs nationwide.",
    "def mean(xs: list[float]) -> float:\n    return sum(xs) / max(1, len(xs))\n\n#include <map>\nfor (int i = 0; i < 9; ++i) {}",
    '0 1 23 456 7890 3.14159 1e-9 0xFF 2026-11-30T08:15:00Z 192.168.0.1 https://example.org/a?b=c#d {"key": [null, true]}',
    "Grüße aus Köln, où l’été naît, señor; Łódź, Đà Nẵng, İstanbul, Þingvellir.",
    "Привет, как дела? Сегодня хорошая погода. Καλημέρα σας. שלום עולם. مرحبا بالعالم.",
    "你好，世界。今天天气很好，我们去公园散步。こんにちは、お元気ですか。안녕하세요 세계.",
    "नमस्ते दुनिया। สวัสดีชาวโลก. გამარჯობა. Բարեւ։ አማርኛ ቋንቋ። ಕನ್ನಡ தமிழ்",
    "🙂🚀👩‍👩‍👧 ∑∫√≤≠∞ αβγδ ←→↑↓ €£¥ ½¾ ™®© ♠♥♦♣ ☃☂ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
)


@dataclass(frozen=True)
class SeenIds:
    """The ids that a server gave for texts; none at all where it shows none, or its two witnesses contradict each other."""

    texts: tuple[tuple[int, ...], ...] = ()
    begun: frozenset[int] = frozenset()  # ids with which texts began that were sent as prompts
    is_believed: bool = True

    @classmethod
    def of(cls, client: ServerClient, facts: ServerFacts) -> SeenIds:
        told = {text: _tokenized(client, facts, text) for text in VARIED_TEXTS} if facts.has_tokenizer else {}
        told = {text: ids for text, ids in told.items() if ids}
        if not told:
            return cls._of_replies(client, facts)
        # The text of the largest id, and of the others the shortest.
        first, *others = sorted(told, key=lambda text: max(told[text]), reverse=True)
        compared = [first, *sorted(others, key=lambda text: len(told[text]))][:NUM_COMPARED]
        replies = [count_request(client, facts, text, return_token_ids=True) for text in compared]
        texts = _without_frame(told.values())
        are_same = all(_is_same(reply, told[text]) for reply, text in zip(replies, compared))
        if not (are_same and _is_constant(replies, told, compared)):
            return cls(is_believed=False)
        return cls(texts, frozenset(told[text][0] for text in compared))

    @classmethod
    def _of_replies(cls, client: ServerClient, facts: ServerFacts) -> SeenIds:
        named = []
        for text in VARIED_TEXTS:
            reply = count_request(client, facts, text, return_token_ids=True)
            if reply is None or not reply.prompt_token_ids:
                break  # a server that does not tell now never will
            named.append(reply.prompt_token_ids)
        return cls(_without_frame(named), frozenset(ids[0] for ids in named))

    @property
    def smallest(self) -> int:
        return min((min(ids) for ids in self.texts), default=0)

    @property
    def largest(self) -> int:
        return max((max(ids) for ids in self.texts), default=0)


def _is_same(reply: ServerReply | None, told: Sequence[int]) -> bool:
    """Whether a completion of a text had the ids that /tokenize gave for it; or, where it names none, no fewer tokens."""
    if reply is None:
        return False
    if reply.prompt_token_ids is not None:
        return list(reply.prompt_token_ids[-len(told) :]) == list(told)
    return reply.usage.prompt_tokens is not None and reply.usage.prompt_tokens >= len(told)


def _is_constant(replies: Sequence[ServerReply | None], told: Mapping[str, Sequence[int]], compared: Sequence[str]) -> bool:
    """Whether each text costs as many tokens more than /tokenize gave for it: what the server puts in front of all."""
    counts = [None if reply is None else reply.usage.prompt_tokens for reply in replies]
    return len({count - len(told[text]) for count, text in zip(counts, compared) if count is not None}) <= 1


def _without_frame(texts: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The texts' ids without what all of them begin and end with: a BOS, an EOS. They have no first or last character in common."""
    found = [tuple(ids) for ids in texts if ids and 0 <= min(ids) and max(ids) < MAX_ID]
    for _ in range(2) if len(found) > 1 else ():
        num_common = len(os.path.commonprefix(found))
        found = [ids[num_common:][::-1] for ids in found]
    return tuple(ids for ids in found if ids)


def _tokenized(client: ServerClient, facts: ServerFacts, text: str) -> list[int]:
    try:
        tokens = client.post_json("/tokenize", {"model": facts.model, "prompt": text}).get("tokens")
    except ServerRefused:
        return []  # too long for a short model, or a gateway that lets only some paths through
    return tokens if isinstance(tokens, list) and all(type(one) is int for one in tokens) else []
