"""An estimate as people read it, folded to the terminal, with or without the laws behind it; or as JSON."""

from __future__ import annotations

import json
import re
import shutil
import textwrap

from labcli.printable import escaped, escaped_json
from labs.estimates.estimate import Estimate

_LEAST_WIDTH, _MOST_WIDTH = 40, 100  # columns: narrower breaks words, wider tires eyes
_NUMBER = re.compile(r"[-+<>0-9.,e]+( of [-+0-9.,e]+)?")


def print_estimate(estimate: Estimate, explain: bool) -> None:
    """Print the figures and the remarks; `explain` adds each figure's law with its numbers, and the sources."""
    print(folded(estimate.title))
    print()
    label_width = max(len(one.label) for one in estimate.figures)
    value_width = max(len(_number(one.shown)) for one in estimate.figures)
    for one in estimate.figures:
        number, unit = _number(one.shown), one.shown[len(_number(one.shown)) :]
        print(f"{one.label:<{label_width}}  {number:>{value_width}}{unit}")
    if estimate.remarks:
        print()
    for remark in estimate.remarks:
        print(folded(remark))
    if explain:
        print()
        for one in estimate.figures:
            print(folded(f"{one.label}: {one.law}", indent="    "))
        print()
        for source in estimate.sources:
            print(folded(f"source: {source}", indent="    "))


def estimate_json(estimate: Estimate) -> str:
    """The inputs, and the results with their laws."""
    results = [{"name": one.name, "value": one.value, "unit": one.unit, "law": one.law} for one in estimate.figures]
    document = {"inputs": dict(estimate.inputs), "results": results}
    return escaped_json(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def _number(text: str) -> str:
    """What stands before the unit, so that numbers are flush right and units flush left."""
    return _NUMBER.match(text)[0]  # type: ignore[index]


def folded(text: str, indent: str = "") -> str:
    """Over lines as wide as the terminal, within reason; 80 columns where there is none."""
    width = min(max(shutil.get_terminal_size().columns, _LEAST_WIDTH), _MOST_WIDTH)
    return textwrap.fill(escaped(text), width, subsequent_indent=indent, break_on_hyphens=False)
