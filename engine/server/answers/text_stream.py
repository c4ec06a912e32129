"""TextStream: a request's text in pieces, which joined are exactly the text a client gets that does not stream.

Two kinds of text are held back until it is clear what becomes of them: the first bytes of a character, and what may be the
beginning of a stop text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer

_INCOMPLETE = "\ufffd"  # how a tokenizer shows bytes that are no whole character


class TextStream:
    """The text of a list of ids that grows.

    text   decodes ids
    stops  stop texts of the request
    """

    def __init__(self, text: TextTokenizer, stops: Sequence[str] = ()) -> None:
        self._text = text
        self._stops = stops
        # ids:  0 ─────────── window_start ─────── read_end ─────── end
        #       told long ago │ told; decoded again │ new
        # Decoding starts before the new ids: some tokenizers write a first token in another way than a later one.
        self._window_start = 0
        self._read_end = 0
        self._held = ""  # decoded, and not yet told
        self._num_told = 0  # characters

    def push(self, output_ids: Sequence[int]) -> str:
        """All ids so far of an unfinished request -> the text that is certain by now and new."""
        told = self._text.decode(output_ids[self._window_start : self._read_end])
        decoded = self._text.decode(output_ids[self._window_start :])
        if decoded.endswith(_INCOMPLETE) or len(decoded) <= len(told):
            return ""
        self._window_start, self._read_end = self._read_end, len(output_ids)
        pending = self._held + decoded[len(told) :]
        num_held = self._num_maybe_stop(pending)
        piece, self._held = pending[: len(pending) - num_held], pending[len(pending) - num_held :]
        self._num_told += len(piece)
        return piece

    def finish(self, text: str) -> str:
        """The request's whole text -> what is left to tell of it."""
        return text[self._num_told :]

    def _num_maybe_stop(self, pending: str) -> int:
        """Characters at the end that may begin a stop text."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(pending)), 0, -1):
            tail = pending[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
