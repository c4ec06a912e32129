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
    from engine.server.requests.server_rules import ServerRules


@dataclass(frozen=True)
class Piece:
    """Of the prompt at `index`; texts and ids of all its pieces joined are the whole answer."""

    index: int
    is_first: bool
    text: str = field(repr=False)
    token_ids: Sequence[int] = field(repr=False)
    logprobs: Sequence[TokenLogprobs] = field(repr=False)
    text_offset: int  # characters told before; for log-probabilities
    ending: Ending | None
    output: RequestOutput = field(repr=False)
    text_so_far: str = field(repr=False)  # of this piece and all before it


class PieceCutter:
    """Cuts the growing output of one request into pieces, as the flavor's server does."""

    def __init__(self, index: int, request: Request, text: TextTokenizer, rules: ServerRules) -> None:
        self._index = index
        self._params = request.sampling_params
        self._text = text
        self._rules = rules
        self._stream = TextStream(text, self._params.stop, rules.num_held)
        self._is_first = True
        self._num_tokens = 0
        self._num_logprobs = 0
        self._text_so_far = ""

    def cut(self, output: RequestOutput) -> Piece | None:
        """What is new in an output; the text may be empty as long as it is uncertain. None: it will be in the next piece."""
        text_offset = self._stream.num_told
        if output.finished:
            told = self._stream.finish(output.text or "")
        else:
            told = self._stream.push(output.output_token_ids)
            if self._stream.is_holding and self._rules.waits_for_stops:
                return None
        # The list of log-probabilities is the engine's own and may grow meanwhile: no more of it than there are tokens here.
        logprobs = (output.logprobs or [])[self._num_logprobs : len(output.output_token_ids)]
        self._text_so_far += told
        piece = Piece(
            index=self._index,
            is_first=self._is_first,
            text=told,
            token_ids=output.output_token_ids[self._num_tokens :],
            logprobs=logprobs,
            text_offset=text_offset,
            ending=ending_of(output, self._params, self._text) if output.finished else None,
            output=output,
            text_so_far=self._text_so_far,
        )
        self._is_first = False
        self._num_tokens = len(output.output_token_ids)
        self._num_logprobs += len(logprobs)
        return piece
