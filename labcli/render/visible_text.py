r"""Visible text: what a file or its name holds, written so that a terminal shows it and obeys none of it.

Control characters (C0, DEL, C1) can move the cursor, set colours and titles; bidirectional ones turn the order of what
is read; line and paragraph separators forge lines. Each becomes its escape: \x1b, \n, \u202e.
"""

from __future__ import annotations

import re

# The last range: half characters, by which Python passes on the bytes of a file name that is no UTF-8.
_HIDDEN = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_TEXT = re.compile(f"[\x00-\x1f{_HIDDEN}]")
_IN_JSON = re.compile(f"[{_HIDDEN}]")


def visible(text: str) -> str:
    """A text for one line of a terminal."""
    return _IN_TEXT.sub(lambda found: repr(found[0])[1:-1], text)


def visible_json(document: str) -> str:
    """A JSON document with the same characters escaped as JSON does; json.dumps has escaped those below a space."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)
