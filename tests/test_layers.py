"""Imports run downwards, and nothing heavy is loaded before it is needed."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("engine", "labs", "labcli")
MAY_IMPORT = {"engine": {"engine"}, "labs": {"engine", "labs"}, "labcli": {"engine", "labs", "labcli"}}
HEAVY = ("torch", "transformers")


def _module_name(file: Path) -> str:
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module_name(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}


def _imports(file: Path, *, everywhere: bool) -> set[str]:
    """Names of the modules a file imports: everywhere, or only when it is imported itself."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} has a relative import; names are written in full here"
            # `from package import name` imports a module when the name is one.
            found.update(
                full if (full := f"{node.module}.{alias.name}") in MODULES else node.module for alias in node.names
            )
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            return
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not everywhere:
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(file.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("name", MODULES)
def test_a_room_imports_no_room_above_it(name):
    package = name.partition(".")[0]
    ours = {one.partition(".")[0] for one in _imports(MODULES[name], everywhere=True)} & set(PACKAGES)
    assert ours <= MAY_IMPORT[package]


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("engine.kvcache")])
def test_the_bookkeeping_of_the_cache_knows_no_tensors(name):
    imported = _imports(MODULES[name], everywhere=True)
    assert not {one for one in imported if one.partition(".")[0] in HEAVY or one.startswith("engine.model")}


def test_no_two_files_import_each_other():
    graph = {name: _imports(file, everywhere=False) & MODULES.keys() for name, file in MODULES.items()}
    finished: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "imports run in a circle: " + " → ".join((*path[path.index(name) :], name))
        if name not in finished:
            for imported in sorted(graph[name] - {name}):
                walk(imported, (*path, name))
            finished.add(name)

    for name in graph:
        walk(name, ())


def _loaded_heavy(code: str) -> str:
    """Run code in a new Python; which heavy packages it has loaded at the end, besides what it printed."""
    code = f"import sys\n{code}\nprint('HEAVY', sorted(set({HEAVY!r}) & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.rpartition("HEAVY ")[2].strip()


LIGHT_MODULES = ["engine", "labs.catalog", "labcli.main", "labcli.lab_run", "labcli.hash_run", "labcli.render.lab_report", "labcli.render.report_html", "labcli.record_comparison", "labs.benches.hash_cost", "labs.lab_01_hash_cost"]
LIGHT_MODULES += [name for name in MODULES if name.startswith("engine.kvcache")]
LIGHT_MODULES += [name for name in MODULES if name.startswith("labs.estimates.") or name == "engine.model_shape"]


@pytest.mark.parametrize("name", LIGHT_MODULES)
def test_importing_a_light_room_loads_no_torch(name):
    assert _loaded_heavy(f"import {name}") == "[]"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run-lab", "--help"], ["serve", "--help"], ["labs"], ["run-lab", "nope"], ["results", "list"], ["results", "--help"], ["predict", "collision", "--blocks", "9"]])
def test_a_command_that_runs_nothing_loads_no_torch(arguments):
    code = f"from labcli.main import main\nsys.argv = ['labcli', *{arguments!r}]\ntry: main()\nexcept SystemExit: pass"
    assert _loaded_heavy(code) == "[]"


def test_help_loads_neither_rich_nor_the_other_rooms():
    code = (
        "from labcli.main import main\nsys.argv = ['labcli', '--help']\ntry: main()\nexcept SystemExit: pass\n"
        "unwanted = {'rich', 'engine', 'labs', 'httpx', 'asyncio', 'numpy'} & set(sys.modules)\n"
        "assert not unwanted, unwanted"
    )
    assert _loaded_heavy(code) == "[]"
