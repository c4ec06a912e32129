"""Piece: what is new of one prompt's answer since the piece before; the last one carries its ending."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Sequence

from engine.request import Request
from engine.request_output import RequestOutput
from engine.runner import TokenLogprobs
from engine.server.answers.ending import Ending, ending_of
from engine.server.answers.text_stream import TextStream

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer


@dataclass(frozen=True)
class Piece:
    """Of the prompt at `index`; texts and ids of all its pieces joined are the whole answer."""

    index: int
    is_first: bool
    text: str = field(repr=False)
    token_ids: Sequence[int] = field(repr=False)
    logprobs: Sequence[TokenLogprobs] = field(repr=False)
    text_offset: int  # characters of the tokens before; for log-probabilities
    ending: Ending | None
    output: RequestOutput = field(repr=False)


class PieceCutter:
    """Cuts the growing output of one request into pieces."""

    def __init__(self, index: int, request: Request, text: TextTokenizer) -> None:
        self._index = index
        self._params = request.sampling_params
        self._text = text
        self._stream = TextStream(text, self._params.stop)
        self._is_first = True
        self._num_tokens = 0
        self._num_logprobs = 0
        self._text_offset = 0

    def cut(self, output: RequestOutput) -> Piece:
        """What is new in an output; the text may be empty as long as it is uncertain."""
        # The list of log-probabilities is the engine's own and may grow meanwhile: no more of it than there are tokens here.
        logprobs = (output.logprobs or [])[self._num_logprobs : len(output.output_token_ids)]
        piece = Piece(
            index=self._index,
            is_first=self._is_first,
            text=self._stream.finish(output.text or "") if output.finished else self._stream.push(output.output_token_ids),
            token_ids=output.output_token_ids[self._num_tokens :],
            logprobs=logprobs,
            text_offset=self._text_offset,
            ending=ending_of(output, self._params, self._text) if output.finished else None,
            output=output,
        )
        self._is_first = False
        self._num_tokens = len(output.output_token_ids)
        self._num_logprobs += len(logprobs)
        if logprobs:
            self._text_offset += sum(len(self._text.decode([one.token_id])) for one in logprobs)
        return piece
