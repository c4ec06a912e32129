"""labcli talks to people: it reads commands and settings, runs labs, keeps records and draws tables."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    # Looked up when asked for: reading package metadata costs more than all of `labcli --help`'s own code.
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("labcli")
        except PackageNotFoundError:
            return "0 (run from a folder, not installed)"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
