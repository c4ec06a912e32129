"""Trimmed: whatever rich can print, without the blanks that fill its lines up; a pipe would keep them."""

from __future__ import annotations

from typing import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


class Trimmed:
    """The renderable line by line, each up to its last sign."""

    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in console.render_lines(self.renderable, options, pad=False):
            while line and not line[-1].text.rstrip(" "):
                line.pop()
            if line:
                last = line.pop()
                yield from line
                yield Segment(last.text.rstrip(" "), last.style)
            yield Segment.line()
