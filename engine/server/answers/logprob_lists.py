"""Log-probabilities as the OpenAI API writes them: one form for completions, another for chats, a third for prompts.

by_id  names each token "token_id:5" instead of by its text, which several may share (vLLM's return_tokens_as_token_ids)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from engine.runner import TokenLogprobs

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer


_LEAST = -9999.0  # in the place of minus infinity, which JSON has no word for


def completion_logprobs(
    text: TextTokenizer, logprobs: Sequence[TokenLogprobs], num_top: int, offset: int = 0, *, by_id: bool = False
) -> dict[str, Any]:
    """Of a completion's tokens; `offset` is the number of characters before the first of them."""
    tokens = [_name(text, one.token_id, by_id) for one in logprobs]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)  # of its name: so does vLLM
    return {
        "text_offset": offsets,
        "token_logprobs": [max(one.logprob, _LEAST) for one in logprobs],
        "tokens": tokens,
        "top_logprobs": [_top(text, one, num_top, by_id) for one in logprobs],
    }


def chat_logprobs(text: TextTokenizer, logprobs: Sequence[TokenLogprobs], num_top: int, *, by_id: bool = False) -> dict[str, Any]:
    """Of a chat's tokens."""
    content = []
    for one in logprobs:
        top = [_chat_entry(text, token_id, logprob, by_id) for token_id, logprob in one.top[:num_top]]
        content.append({**_chat_entry(text, one.token_id, one.logprob, by_id), "top_logprobs": top})
    return {"content": content}


def prompt_logprobs(text: TextTokenizer, logprobs: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
    """Of a prompt's tokens, by token id; nothing comes before the first. The rank of a token outside the top is unknown."""
    entries: list[dict[str, Any] | None] = []
    for one in logprobs:
        if one is None:
            entries.append(None)
            continue
        entry = {str(one.token_id): _prompt_entry(text, one.token_id, one.logprob, None)}
        for rank, (token_id, logprob) in enumerate(one.top, 1):
            entry[str(token_id)] = _prompt_entry(text, token_id, logprob, rank)
        entries.append(entry)
    return entries


def _top(text: TextTokenizer, one: TokenLogprobs, num_top: int, by_id: bool) -> dict[str, float]:
    # The chosen token is always among them.
    candidates = [(one.token_id, one.logprob), *one.top[:num_top]]
    return {_name(text, token_id, by_id): max(logprob, _LEAST) for token_id, logprob in candidates}


def _chat_entry(text: TextTokenizer, token_id: int, logprob: float, by_id: bool) -> dict[str, Any]:
    written = list(text.decode([token_id]).encode("utf-8"))
    return {"token": _name(text, token_id, by_id), "logprob": max(logprob, _LEAST), "bytes": written}


def _name(text: TextTokenizer, token_id: int, by_id: bool) -> str:
    return f"token_id:{token_id}" if by_id else text.decode([token_id])


def _prompt_entry(text: TextTokenizer, token_id: int, logprob: float, rank: int | None) -> dict[str, Any]:
    return {"logprob": max(logprob, _LEAST), "rank": rank, "decoded_token": text.decode([token_id])}
