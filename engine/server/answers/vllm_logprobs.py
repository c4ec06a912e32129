"""Log-probabilities as vLLM 0.32.0 writes them: one form for completions, another for chats, a third for prompts.

A token that holds only a part of a character is named "", and the one that brings the last part has the whole character:
of 😀 in three tokens the names are "", "" and "😀".

before  ids that come before these, of the same answer; for such names
by_id   names each token "token_id:5" instead, for several tokens may share a text (return_tokens_as_token_ids)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from engine.runner import TokenLogprobs
from engine.server.answers.text_stream import INCOMPLETE

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer


_LEAST = -9999.0  # in the place of minus infinity, which JSON has no word for
_MAX_PARTS = 3  # tokens looked back at: a character has at most four bytes


def completion_logprobs(
    text: TextTokenizer, logprobs: Sequence[TokenLogprobs], num_top: int, offset: int = 0, before: Sequence[int] = (), *,
    by_id: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Of a completion's tokens; `offset` is the number of characters told before the first of them."""
    names = _Names(text, before, logprobs, by_id)
    tokens = [names.of(position, one.token_id) for position, one in enumerate(logprobs)]
    offsets, top_logprobs = [], []
    for position, (token, one) in enumerate(zip(tokens, logprobs)):
        offsets.append(offset)
        offset += len(token)  # of its name: so does vLLM
        candidates = [(one.token_id, one.logprob), *one.top[:num_top]]  # the chosen token is always among them
        top_logprobs.append({names.of(position, token_id): max(logprob, _LEAST) for token_id, logprob in candidates})
    return {
        "text_offset": offsets,
        "token_logprobs": [max(one.logprob, _LEAST) for one in logprobs],
        "tokens": tokens,
        "top_logprobs": top_logprobs,
    }


def chat_logprobs(
    text: TextTokenizer, logprobs: Sequence[TokenLogprobs], num_top: int, before: Sequence[int] = (), *, by_id: bool = False
) -> dict[str, Any]:
    """Of a chat's tokens."""
    names = _Names(text, before, logprobs, by_id)

    def entry(position: int, token_id: int, logprob: float) -> dict[str, Any]:
        written = names.text_of(position, token_id)
        name = names.of(position, token_id) if by_id else written
        return {"token": name, "logprob": max(logprob, _LEAST), "bytes": list(written.encode("utf-8"))}

    content = []
    for position, one in enumerate(logprobs):
        top = [entry(position, token_id, logprob) for token_id, logprob in one.top[:num_top]]
        content.append({**entry(position, one.token_id, one.logprob), "top_logprobs": top})
    return {"content": content}


def prompt_logprobs(text: TextTokenizer, logprobs: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
    """Of a prompt's tokens, by token id; nothing comes before the first. The rank of a token outside the top is unknown."""
    known = [one for one in logprobs if one is not None]
    names = _Names(text, (), known, by_id=False)
    entries: list[dict[str, Any] | None] = []
    position = -1
    for one in logprobs:
        if one is None:
            entries.append(None)
            continue
        position += 1
        entry = {str(one.token_id): _prompt_entry(names.of(position, one.token_id), one.logprob, None)}
        for rank, (token_id, logprob) in enumerate(one.top, 1):
            entry[str(token_id)] = _prompt_entry(names.of(position, token_id), logprob, rank)
        entries.append(entry)
    return entries


class _Names:
    """What the tokens at some positions, chosen or not, are called."""

    def __init__(self, text: TextTokenizer, before: Sequence[int], logprobs: Sequence[TokenLogprobs], by_id: bool) -> None:
        self._text = text
        self._by_id = by_id
        self._chosen = [*before[-_MAX_PARTS:], *(one.token_id for one in logprobs)]
        self._start = len(self._chosen) - len(logprobs)
        self._alone: dict[int, str] = {}  # token id -> its text; positions share most of their candidates
        self._begun = (-1, [])  # position, the tokens right before it that hold parts of characters

    def of(self, position: int, token_id: int) -> str:
        return f"token_id:{token_id}" if self._by_id else self.text_of(position, token_id)

    def text_of(self, position: int, token_id: int) -> str:
        alone = self._text_alone(token_id)
        if not alone.endswith(INCOMPLETE):
            return alone
        begun = self._begun_before(position)
        for start in range(len(begun) - 1, -1, -1):
            joined = self._text.decode([*begun[start:], token_id], keep_special=True)
            if not joined.endswith(INCOMPLETE):
                return joined
        return ""

    def _begun_before(self, position: int) -> list[int]:
        """The tokens that a token here may complete; whole ones before them have no part in its character."""
        if self._begun[0] != position:
            end = start = self._start + position
            while start > max(0, end - _MAX_PARTS) and self._text_alone(self._chosen[start - 1]).endswith(INCOMPLETE):
                start -= 1
            self._begun = position, self._chosen[start:end]
        return self._begun[1]

    def _text_alone(self, token_id: int) -> str:
        if token_id not in self._alone:
            self._alone[token_id] = self._text.decode([token_id], keep_special=True)
        return self._alone[token_id]


def _prompt_entry(name: str, logprob: float, rank: int | None) -> dict[str, Any]:
    return {"logprob": max(logprob, _LEAST), "rank": rank, "decoded_token": name}
