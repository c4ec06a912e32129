"""Log-probabilities as SGLang 0.5.23 writes them: the OpenAI API's two forms, with holes of its own.

A completion's offsets are all -1, and the candidates are those asked for, with the chosen token only if it is one of them; with
none asked for there is no entry at all. A chat's entries have the bytes before the number.

/generate has a form of its own: of each token its log-probability, its id, and no text; of the prompt only if asked for, the
first without a number.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Sequence

from engine.request_output import RequestOutput
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


def native_logprobs(output: RequestOutput, num_top: int) -> dict[str, Any]:
    """Of a whole answer to /generate."""
    given, made = output.prompt_logprobs or [], _made(output)
    told = {
        "input_token_logprobs": _prompt_entries(output.prompt_token_ids, given),
        "output_token_logprobs": _entries(made),
        "output_token_logprobs_length": len(made),
    }
    if num_top:
        told["input_top_logprobs"] = _tops(given, num_top)
        told["output_top_logprobs"] = _tops(made, num_top)
    return told


class NativeLogprobsText:
    """The same as JSON, for the events of one stream: each tells everything again, and only what is new is written anew."""

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._given: Sequence[TokenLogprobs | None] | None = None  # whose texts these two are
        self._given_entries = self._given_tops = "[]"
        self._num_made = 0
        self._made_entries = self._made_tops = ""  # without the brackets

    def members(self, output: RequestOutput) -> str:
        """The members of an object, without its braces."""
        if output.prompt_logprobs is not None and output.prompt_logprobs is not self._given:
            self._given = output.prompt_logprobs
            self._given_entries = _json(_prompt_entries(output.prompt_token_ids, self._given))
            self._given_tops = _json(_tops(self._given, self._num_top))
        made = _made(output)
        if len(made) > self._num_made:
            comma, new = "," if self._num_made else "", made[self._num_made :]
            self._made_entries += comma + _json(_entries(new))[1:-1]
            self._made_tops += comma + _json(_tops(new, self._num_top))[1:-1]
            self._num_made = len(made)
        told = f'"input_token_logprobs":{self._given_entries},"output_token_logprobs":[{self._made_entries}],'
        told += f'"output_token_logprobs_length":{self._num_made}'
        if self._num_top:
            told += f',"input_top_logprobs":{self._given_tops},"output_top_logprobs":[{self._made_tops}]'
        return told


def _made(output: RequestOutput) -> Sequence[TokenLogprobs]:
    # The list of the output is the engine's own and may grow meanwhile: no more of it than there are tokens here.
    return (output.logprobs or [])[: len(output.output_token_ids)]


def _prompt_entries(token_ids: Sequence[int], given: Sequence[TokenLogprobs | None]) -> list[list[Any]]:
    return [[None if one is None else max(one.logprob, LEAST), token_id, None] for token_id, one in zip(token_ids, given)]


def _entries(made: Sequence[TokenLogprobs]) -> list[list[Any]]:
    return [[max(one.logprob, LEAST), one.token_id, None] for one in made]


def _tops(logprobs: Sequence[TokenLogprobs | None], num_top: int) -> list[list[list[Any]] | None]:
    return [
        None if one is None else [[max(logprob, LEAST), token_id, None] for token_id, logprob in one.top[:num_top]]
        for one in logprobs
    ]


def _json(value: list[Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
