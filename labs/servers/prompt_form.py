"""PromptForm: how a lab's token ids reach a server as exactly that many tokens.

    ids    [5, 17, 902]            the server takes token ids: the same numbers, below a bound that is safe
    words  " parcel street open"   it takes text only: one word a token, proven by the server's own count

No server tells how many ids its model has, and an id outside ends some servers' process (SGLang 0.5.23). So ids stay
between the smallest and the largest that the server itself gave for varied text: special tokens lie below, or above. Two
witnesses are heard where there are two, /tokenize and the ids that a completion of the same text names; they must agree, or
else on how many tokens that text is. Where no text's ids are seen, or are not believed, no id is sent at all.

Each request is counted by the server: `prompt_tokens` of two lengths must differ by as many tokens as the prompts do,
and what both have more is put in front by the server (a BOS, a template): the same for every prompt, so it is only
counted. A form that is not exact is not used: predictions are about tokens.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Iterable, Sequence

from labs.servers.count_request import count_request
from labs.servers.seen_ids import SeenIds
from labs.servers.server_client import ServerClient
from labs.servers.server_facts import ServerFacts
from labs.system_prompt import SYSTEM_PROMPT, USER_DETAILS, USER_OPENINGS
from labs.targets.base import TargetUnavailable

MIN_IDS = 64  # labs begin that many prompts differently
WORDS_PER_PROOF = 48
MAX_PROOFS = 60  # requests that prove words: afterwards the words that are proven must do
LENGTHS = (5, 12)  # of the two prompts that show what the server puts in front


@dataclass(frozen=True)
class PromptForm:
    """What stands for a lab's ids in a request.

    vocab_size  a lab's ids are 0 to vocab_size − 1; the next one, own_id, is kept for the tool's own checks, so that these
                leave nothing in the cache that a lab's prompt could begin with
    num_front   tokens the server puts in front of every prompt
    words       one word an id, own_id included; empty where ids themselves are sent
    first_id    the server's id that stands for 0: the smallest that its tokenizer gave for text
    begun       ids with which the texts began that were sent to find this out
    """

    vocab_size: int
    num_front: int = 0
    words: tuple[str, ...] = field(default=(), repr=False)
    first_id: int = 0
    begun: frozenset[int] = field(default=frozenset(), repr=False)

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
            return [token_id + self.first_id for token_id in token_ids]
        # A blank before the first word too: most vocabularies hold words with their blank.
        return "".join(f" {self.words[token_id]}" for token_id in token_ids)

    def read(self, server_ids: Iterable[int]) -> tuple[int, ...]:
        """A server's ids as a lab's; below 0 or above own_id where they are none of the alphabet."""
        return tuple(token_id - self.first_id for token_id in server_ids)

    def own_prompt(self, num_tokens: int, rng: random.Random) -> list[int]:
        """A prompt for the tool's own questions: own_id, then random ids."""
        return [self.own_id, *(rng.randrange(self.vocab_size) for _ in range(num_tokens - 1))]


def find_prompt_form(client: ServerClient, facts: ServerFacts) -> PromptForm:
    """The form that is exact here: ids if the server takes them, else words.

    Raises TargetUnavailable when there is no completions endpoint, or no form is exact; TargetError when the server fails.
    """
    seen = SeenIds.of(client, facts)
    if seen.largest - seen.smallest > MIN_IDS:
        form = _proven_ids(client, facts, seen)
        if form is not None:
            return form
    return _proven_words(client, facts, "takes no token ids" if seen.is_believed else "does not confirm the ids of its /tokenize")


def _proven_ids(client: ServerClient, facts: ServerFacts, seen: SeenIds) -> PromptForm | None:
    """The form of ids, if two prompts of ids cost what they should; None if the server takes none or counts others."""
    first_id = seen.smallest
    begun = frozenset(token_id - first_id for token_id in seen.begun)
    form, rng = PromptForm(seen.largest - first_id, first_id=first_id, begun=begun), random.Random()
    fronts = set()
    for length in LENGTHS:
        sent = form.payload(form.own_prompt(length, rng))
        reply = count_request(client, facts, sent, return_token_ids=True)
        if reply is None:
            return None
        counted, named = reply.usage.prompt_tokens, reply.prompt_token_ids
        if named is not None and list(named[-length:]) != sent:
            return None
        if counted is None and named is not None:
            counted = len(named)
        if counted is None and facts.kind != "openai":
            counted = length  # no count at all: engines that are known to take ids are believed
        if counted is None or counted < length:
            return None
        fronts.add(counted - length)
    return replace(form, num_front=fronts.pop()) if len(fronts) == 1 else None


def _proven_words(client: ServerClient, facts: ServerFacts, why: str) -> PromptForm:
    """Words of one token each: N words must cost as many tokens more than one word as they are more, N − 1.

    A group that costs more holds a word of several tokens: it is halved until that word is alone and dropped.

    why  the server's ids cannot be sent, for messages
    """
    own, *candidates = _candidate_words()
    # A server that refuses one word refuses everything, and says itself why.
    one, two = (_cost(client, facts, [own] * times, may_refuse=False) for times in (1, 2))
    if one is None or two is None:
        raise TargetUnavailable(
            f"{client.shown} {why} and reports no prompt_tokens: no prompt of a known length can be sent; "
            "accepted: a server that does one of both"
        )
    if two - one != 1 or one < 1:
        raise TargetUnavailable(
            f"{client.shown} {why} and counts {one} tokens for one word, {two} for two: prompts of a known length "
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
            f"{client.shown} {why}, and only {len(words)} words could be proven to be one token each; "
            f"accepted: a server of token ids, or at least {MIN_IDS} such words"
        )
    return PromptForm(len(words), num_front=front, words=(*words, own))


def _cost(client: ServerClient, facts: ServerFacts, words: Sequence[str], may_refuse: bool = True) -> int | None:
    reply = count_request(client, facts, "".join(f" {word}" for word in words), may_refuse)
    return None if reply is None else reply.usage.prompt_tokens


@cache
def _candidate_words() -> tuple[str, ...]:
    """Short common words; the first is the tool's own."""
    text = " ".join((SYSTEM_PROMPT, *USER_OPENINGS, *USER_DETAILS)).lower()
    words = dict.fromkeys(word for word in re.findall(r"[a-z]+", text) if 2 <= len(word) <= 7)
    words.pop("the", None)
    return ("the", *words)
