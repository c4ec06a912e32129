"""Log-probabilities as SGLang 0.5.23 writes them: the OpenAI API's two forms, with holes of its own.

A completion's offsets are all -1, and the candidates are those asked for, with the chosen token only if it is one of them; with
none asked for there is no entry at all. A chat's entries have the bytes before the number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from engine.runner import TokenLogprobs

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer

LEAST = -9999.0  # in the place of minus infinity, which JSON has no word for


def completion_logprobs(text: TextTokenizer, logprobs: Sequence[TokenLogprobs], num_top: int) -> dict[str, Any]:
    """Of a completion's tokens."""
    top = [{text.decode([token_id]): max(logprob, LEAST) for token_id, logprob in one.top[:num_top]} for one in logprobs]
    return {
        "text_offset": [-1] * len(logprobs),
        "token_logprobs": [max(one.logprob, LEAST) for one in logprobs],
        "tokens": [text.decode([one.token_id]) for one in logprobs],
        "top_logprobs": top if num_top else [],
    }


def chat_logprobs(text: TextTokenizer, logprobs: Sequence[TokenLogprobs], num_top: int) -> dict[str, Any]:
    """Of a chat's tokens."""
    content = []
    for one in logprobs:
        top = [_entry(text, token_id, logprob) for token_id, logprob in one.top[:num_top]]
        content.append({**_entry(text, one.token_id, one.logprob), "top_logprobs": top})
    return {"content": content}


def _entry(text: TextTokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    written = text.decode([token_id])
    return {"token": written, "bytes": list(written.encode("utf-8")), "logprob": max(logprob, LEAST)}
