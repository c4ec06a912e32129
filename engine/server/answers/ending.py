"""Why a request ended, in the words of the replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from engine.request import FinishReason, SamplingParams
from engine.request_output import RequestOutput

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer


class Ending(NamedTuple):
    """How a request ended, and on what."""

    finish_reason: str  # stop, length, abort
    matched: str | int | None = None  # the stop text or the stop token's id; None for any other ending
    is_end_of_text: bool = False  # the matched token is the model's own


def ending_of(output: RequestOutput, params: SamplingParams, text: TextTokenizer) -> Ending:
    """The ending of a finished output."""
    assert output.finish_reason is not None
    reason = output.finish_reason.value
    if output.finish_reason is not FinishReason.STOP:
        return Ending(reason)
    if params.stop:
        whole = text.decode(output.output_token_ids)
        found = [(whole.find(stop), stop) for stop in params.stop if stop in whole]
        if found:
            return Ending(reason, min(found)[1])
    last = output.output_token_ids[-1]
    return Ending(reason, last, is_end_of_text=last not in params.stop_token_ids)
