"""The laws a lab predicts with, found in its source: every `theory.<law>` it names, its scenarios included."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import labs
from labs import theory

_FOLDER = Path(labs.__file__).parent


@dataclass(frozen=True)
class Law:
    """One law of labs/theory.py, without numbers."""

    name: str  # "shared_prefix_hits"
    formula: str  # "(num_requests − 1)·unit·⌊…⌋"
    text: str  # the first sentence of its docstring


def laws_of(path: Path) -> list[Law]:
    """Laws named in a lab's file and in the scenarios it imports; in order of appearance."""
    names: dict[str, None] = {}
    for source in [path, *_scenarios(path)]:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "theory":
                names[node.attr] = None
    functions = {name: getattr(theory, name) for name in names}
    return [_law(name, function) for name, function in functions.items() if hasattr(function, "formula")]


def _scenarios(path: Path) -> list[Path]:
    """Files of labs/scenarios that a lab imports: they make its requests and predictions."""
    found: dict[Path, None] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("labs.scenarios."):
            found[_FOLDER / f"{node.module.removeprefix('labs.').replace('.', '/')}.py"] = None
    return list(found)


def _law(name: str, function: object) -> Law:
    # {num_tokens:,} and {shape.name} become the names that the docstring explains.
    formula = re.sub(r"\{(\w+)(?:\.\w+)*(?::[^}]*)?\}", r"\1", function.formula)  # type: ignore[attr-defined]
    text = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
    return Law(name, formula, text)
