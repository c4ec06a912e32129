"""TextStream: a request's text in pieces, which joined are exactly the text a client gets that does not stream.

Two kinds of text are held back until it is clear what becomes of them: the first bytes of a character, and what may be the
beginning of a stop text. How much of the second kind is the flavor's own way (`ServerRules.num_held`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Sequence

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer

INCOMPLETE = "\ufffd"  # how a tokenizer shows bytes that are no whole character
_LAST_FEW = 8
_NUM_COMPARED = 16  # characters; few texts have as many in common with a stop text by chance


class TextStream:
    """The text of a list of ids that grows.

    text      decodes ids
    stops     stop texts of the request
    num_held  text not told yet, stop texts -> how many characters at its end to keep back
    """

    def __init__(self, text: TextTokenizer, stops: Sequence[str], num_held: Callable[[str, Sequence[str]], int]) -> None:
        self._text = text
        self._stops = stops
        self._num_held = num_held
        # ids:  0 ─────────── window_start ─────── read_end ─────── end
        #       told long ago │ told; decoded again │ new
        # Decoding starts before the new ids: some tokenizers write a first token in another way than a later one.
        self._window_start = 0
        self._read_end = 0
        self._held = ""  # decoded, and not yet told
        self.num_told = 0  # characters

    @property
    def is_holding(self) -> bool:
        """Whether there is whole text that is not told yet."""
        return bool(self._held)

    def push(self, output_ids: Sequence[int]) -> str:
        """All ids so far of an unfinished request -> the text that is certain by now and new."""
        told = self._text.decode(output_ids[self._window_start : self._read_end])
        decoded = self._text.decode(output_ids[self._window_start :])
        if decoded.endswith(INCOMPLETE) or len(decoded) <= len(told):
            return ""
        self._window_start, self._read_end = self._read_end, len(output_ids)
        pending = self._held + decoded[len(told) :]
        num_held = self._num_held(pending, self._stops) if self._stops else 0
        piece, self._held = pending[: len(pending) - num_held], pending[len(pending) - num_held :]
        self.num_told += len(piece)
        return piece

    def finish(self, text: str) -> str:
        """The request's whole text -> what is left to tell of it."""
        piece, self._held = text[self.num_told :], ""
        self.num_told += len(piece)
        return piece


def may_begin_stop(text: str, stops: Sequence[str]) -> bool:
    """Whether a text ends in what may be the beginning of a stop text."""
    return any(_ends_in_beginning(text, stop) for stop in stops if stop)


def _ends_in_beginning(text: str, stop: str) -> bool:
    """Tried only where the stop text's first characters are: both may be long, and this is asked for each token."""
    start = max(0, len(text) - len(stop) + 1)
    last = len(text) - _NUM_COMPARED  # from here on less than that is left of the text
    at = text.find(stop[:_NUM_COMPARED], start)
    while at >= 0:
        if stop.startswith(text[at:]):
            return True
        at = text.find(stop[:_NUM_COMPARED], at + 1)
    return any(stop.startswith(text[at:]) for at in range(max(start, last + 1), len(text)))


def whole_characters(tokenizer: TextTokenizer, text: str, token_ids: Sequence[int]) -> str:
    """The text of these ids without a character at its end that lacks some of its bytes; one cut at a stop text is left alone."""
    if not text.endswith(INCOMPLETE) or text != tokenizer.decode(token_ids):
        return text
    end = len(token_ids)
    # The last few ids tell: a character has at most four bytes, and an id at least one, the end of text aside.
    while end and tokenizer.decode(token_ids[max(0, end - _LAST_FEW) : end]).endswith(INCOMPLETE):
        end -= 1
    return tokenizer.decode(token_ids[:end])
