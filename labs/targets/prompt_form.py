"""PromptForm: how a lab's token ids reach a server as exactly that many tokens.

    ids    [5, 17, 902]            the server takes token ids: the same numbers, below a bound that is safe
    words  " parcel street open"   it takes text only: one word a token, proven by the server's own count

No server tells how many ids its model has, and an id outside ends some servers' process (SGLang 0.5.23). So ids stay
below the largest one that the server's own tokenizer gave for varied text; without such a text no id is sent at all.

Each request is counted by the server: `prompt_tokens` of two lengths must differ by as many tokens as the prompts do,
and what both have more is put in front by the server (a BOS, a template): the same for every prompt, so it is only
counted. A form that is not exact is not used: predictions are about tokens.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Sequence

from labs.system_prompt import SYSTEM_PROMPT, USER_DETAILS, USER_OPENINGS
from labs.targets.base import TargetUnavailable
from labs.targets.server_client import ServerClient, ServerRefused
from labs.targets.server_facts import ServerFacts
from labs.targets.server_reply import ServerReply

COMPLETIONS = "/v1/completions"
MAX_ID = 2**24  # a tokenizer that gives larger ids is not believed
MIN_IDS = 64  # labs begin that many prompts differently
WORDS_PER_PROOF = 48
MAX_PROOFS = 60  # requests that prove words: afterwards the words that are proven must do
LENGTHS = (5, 12)  # of the two prompts that show what the server puts in front

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
class PromptForm:
    """What stands for a lab's ids in a request.

    vocab_size  a lab's ids are 0 to vocab_size − 1; the next one, own_id, is kept for the tool's own checks, so that these
                leave nothing in the cache that a lab's prompt could begin with
    num_front   tokens the server puts in front of every prompt
    words       one word an id, own_id included; empty where ids themselves are sent
    """

    vocab_size: int
    num_front: int = 0
    words: tuple[str, ...] = field(default=(), repr=False)

    @property
    def is_exact_ids(self) -> bool:
        """Whether the server gets the ids themselves."""
        return not self.words

    @property
    def own_id(self) -> int:
        """With this id the tool's own prompts begin, and no lab's."""
        return self.vocab_size

    def payload(self, token_ids: Sequence[int]) -> list[int] | str:
        """The request's `prompt`, for ids 0 to own_id."""
        if self.is_exact_ids:
            return list(token_ids)
        # A blank before the first word too: most vocabularies hold words with their blank.
        return "".join(f" {self.words[token_id]}" for token_id in token_ids)

    def own_prompt(self, num_tokens: int, rng: random.Random) -> list[int]:
        """A prompt for the tool's own questions: own_id, then random ids."""
        return [self.own_id, *(rng.randrange(self.vocab_size) for _ in range(num_tokens - 1))]


def find_prompt_form(client: ServerClient, facts: ServerFacts) -> PromptForm:
    """The form that is exact here: ids if the server takes them, else words.

    Raises TargetUnavailable when there is no completions endpoint, or no form is exact; TargetError when the server fails.
    """
    bound = _id_bound(client, facts)
    if bound is not None and bound > MIN_IDS:
        form = _proven_ids(client, facts, bound - 1)
        if form is not None:
            return form
    return _proven_words(client, facts)


def _id_bound(client: ServerClient, facts: ServerFacts) -> int | None:
    """One more than the largest id the server's tokenizer gave for varied text; None when it shows no ids."""
    ids: list[int] = []
    if facts.has_tokenizer:
        ids = _tokenized(client, facts, "\n".join(VARIED_TEXTS))
        for text in VARIED_TEXTS if not ids else ():
            ids += _tokenized(client, facts, text)
    if not ids:
        for text in VARIED_TEXTS:
            reply = _count_request(client, facts, text, return_token_ids=True)
            found = None if reply is None else reply.prompt_token_ids
            if not found:
                break  # a server that does not tell now never will
            ids += found
    return max(ids) + 1 if ids and 0 <= min(ids) and max(ids) < MAX_ID else None


def _tokenized(client: ServerClient, facts: ServerFacts, text: str) -> list[int]:
    try:
        tokens = client.post_json("/tokenize", {"model": facts.model, "prompt": text}).get("tokens")
    except ServerRefused:
        return []  # too long for a short model, or a gateway that lets only some paths through
    return tokens if isinstance(tokens, list) and all(type(one) is int for one in tokens) else []


def _proven_ids(client: ServerClient, facts: ServerFacts, vocab_size: int) -> PromptForm | None:
    """The form of ids, if two prompts of ids cost what they should; None if the server takes none or counts others."""
    form, rng = PromptForm(vocab_size), random.Random()
    fronts = set()
    for length in LENGTHS:
        sent = form.own_prompt(length, rng)
        reply = _count_request(client, facts, form.payload(sent), return_token_ids=True)
        if reply is None:
            return None
        counted, seen = reply.usage.prompt_tokens, reply.prompt_token_ids
        if seen is not None and list(seen[-length:]) != sent:
            return None
        if counted is None and seen is not None:
            counted = len(seen)
        if counted is None and facts.kind != "openai":
            counted = length  # no count at all: engines that are known to take ids are believed
        if counted is None or counted < length:
            return None
        fronts.add(counted - length)
    return PromptForm(vocab_size, num_front=fronts.pop()) if len(fronts) == 1 else None


def _proven_words(client: ServerClient, facts: ServerFacts) -> PromptForm:
    """Words of one token each: N words must cost as many tokens more than one word as they are more, N − 1.

    A group that costs more holds a word of several tokens: it is halved until that word is alone and dropped.
    """
    own, *candidates = _candidate_words()
    # A server that refuses one word refuses everything, and says itself why.
    one, two = (_cost(client, facts, [own] * times, may_refuse=False) for times in (1, 2))
    if one is None or two is None:
        raise TargetUnavailable(
            f"{client.shown} takes no token ids and reports no prompt_tokens: no prompt of a known length can be sent; "
            "accepted: a server that does one of both"
        )
    if two - one != 1 or one < 1:
        raise TargetUnavailable(
            f"{client.shown} takes no token ids and counts {one} tokens for one word, {two} for two: prompts of a known length "
            "cannot be sent; accepted: a server that counts each word of a text once"
        )
    front = one - 1
    size = min(WORDS_PER_PROOF, max(4, (facts.max_model_len or 4_096) // 4))
    groups = [candidates[start : start + size] for start in range(0, len(candidates), size)]
    words: list[str] = []
    for _ in range(MAX_PROOFS):
        if not groups:
            break
        group = groups.pop(0)
        cost = _cost(client, facts, [own, *group])
        if cost == front + 1 + len(group):
            words += group
        elif len(group) > 4:
            half = len(group) // 2
            groups += [group[:half], group[half:]]
    if len(words) < MIN_IDS:
        raise TargetUnavailable(
            f"{client.shown} takes no token ids, and only {len(words)} words could be proven to be one token each; "
            f"accepted: a server of token ids, or at least {MIN_IDS} such words"
        )
    return PromptForm(len(words), num_front=front, words=(*words, own))


def _cost(client: ServerClient, facts: ServerFacts, words: Sequence[str], may_refuse: bool = True) -> int | None:
    reply = _count_request(client, facts, "".join(f" {word}" for word in words), may_refuse)
    return None if reply is None else reply.usage.prompt_tokens


@cache
def _candidate_words() -> tuple[str, ...]:
    """Short common words; the first is the tool's own."""
    text = " ".join((SYSTEM_PROMPT, *USER_OPENINGS, *USER_DETAILS)).lower()
    words = dict.fromkeys(word for word in re.findall(r"[a-z]+", text) if 2 <= len(word) <= 7)
    words.pop("the", None)
    return ("the", *words)


def _count_request(
    client: ServerClient, facts: ServerFacts, prompt: list[int] | str, may_refuse: bool = True, **fields: Any
) -> ServerReply | None:
    """A completion of one token, for its counts; None when the server does not take such a prompt, and may refuse it.

    Raises TargetUnavailable when there is no completions endpoint, TargetError when the server fails otherwise.
    """
    body = {"model": facts.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    for extra in ({**fields}, {}) if fields else ({},):
        try:
            return ServerReply.of_json(client.compute(COMPLETIONS, {**body, **extra}), 0.0, client.shown)
        except ServerRefused as error:
            if error.status in (404, 405):
                raise TargetUnavailable(
                    f"{error}; accepted: a server of completions at {COMPLETIONS}: chat alone hides the prompt"
                ) from error
            if error.status in (429, 503) or not may_refuse:
                raise  # busy says nothing about the form
    return None
