"""SVG pieces that stretch: lengths along x in per cent of the chart, lengths along y and texts in CSS pixels.

A chart is as wide as its column, and its letters stay as large as the page's, on a phone as on paper. So every text
must fit at the narrowest width, which is what `text_width` is for: it guesses a text's width, rather too wide.
"""

from __future__ import annotations

import unicodedata
from html import escape
from typing import Sequence

from labcli.printable import printable

MIN_WIDTH = 320.0  # px; a narrower window scrolls
TEXT_SIZE = 12  # px
LINE_HEIGHT = 16  # px

_NARROW, _WIDE = "iljtfrI.,:;|!'()[]{} ·", "mwMW@%→—✓✗"
_ANCHORS = {"start": "", "middle": "m", "end": "e"}  # as the style sheet names them: a page has a thousand texts


def clean(text: object) -> str:
    """A text for HTML and SVG: escaped, and without characters that neither may hold or that turn a line round."""
    return escape(printable(text), quote=False).replace('"', "&quot;")


def text_width(text: str, size: float = TEXT_SIZE) -> float:
    """px; of a wide font such as DejaVu Sans, so that every other fits as well."""
    em = 0.0
    for letter in text:
        if unicodedata.east_asian_width(letter) in "WF":
            em += 1.0
        elif letter in _NARROW:
            em += 0.42
        elif letter in _WIDE:
            em += 0.98
        elif letter.isupper() or ord(letter) > 0x24F:
            em += 0.8
        else:
            em += 0.64
    return em * size


def wrap_text(text: str, width: float) -> list[str]:
    """The text in lines no wider than `width` px; a word that is wider itself is cut in two."""
    lines = [""]
    for word in text.split(" "):
        candidate = f"{lines[-1]} {word}" if lines[-1] else word
        if text_width(candidate) <= width:
            lines[-1] = candidate
            continue
        if lines[-1]:
            lines.append("")
        while text_width(word) > width and len(word) > 1:
            fits = max((count for count in range(1, len(word)) if text_width(word[:count]) <= width), default=1)
            lines[-1], word = word[:fits], word[fits:]
            lines.append("")
        lines[-1] = word
    return lines


def at(fraction: float) -> str:
    """A place along x: 0 is the left edge, 1 the right one. A tenth of a per cent is less than a pixel."""
    return f"{round(100 * fraction, 1):g}%"


def _place(name: str, fraction: float) -> str:
    """An attribute with a place along x; the left edge is where a browser puts what has none."""
    place = at(fraction)
    return "" if place in ("0%", "-0%") else f' {name}="{place}"'


def text(x: float, y: float, content: str, anchor: str = "start", css: str = "", dx: float = 0) -> str:
    """One line of text; y is its base line, dx px that it stands beside x."""
    css = " ".join(part for part in (css, _ANCHORS[anchor]) if part)
    classed = f' class="{css}"' if css else ""
    shifted = f' dx="{dx:g}"' if dx else ""
    return f'<text{_place("x", x)} y="{y:g}"{shifted}{classed}>{clean(content)}</text>'


def text_lines(x: float, y: float, lines: Sequence[str], css: str = "") -> str:
    """Lines below each other, from the base line y on."""
    return "".join(text(x, y + number * LINE_HEIGHT, line, css=css) for number, line in enumerate(lines))


def rect(x: float, y: float, width: float, height: float, css: str) -> str:
    """Both ends are rounded, so that neighbours touch; something is never so narrow that it looks like nothing."""
    share = round(100 * (x + width), 1) - round(100 * x, 1)
    return f'<rect{_place("x", x)} y="{y:g}" width="{max(share, 0.1 if width else 0.0):.4g}%" height="{height:g}" class="{css}"/>'


def v_line(x: float, y_from: float, y_to: float, css: str) -> str:
    top = f' y1="{y_from:g}"' if y_from else ""
    return f'<line{_place("x1", x)}{_place("x2", x)}{top} y2="{y_to:g}" class="{css}"/>'


def h_line(y: float, x_from: float, x_to: float, css: str) -> str:
    return f'<line{_place("x1", x_from)} x2="{at(x_to)}" y1="{y:g}" y2="{y:g}" class="{css}"/>'


def mark(x: float, y: float, number: int) -> str:
    """One of the marks that the page defines: circle, square, triangle, diamond, cross, ring."""
    return f'<use href="#m{number % 6}" x="{at(x)}" y="{y:g}"/>'
