"""Served sizes: a lab's prompts fitted to a server, whose limits and unit nobody chose for the lab.

In process a size that does not fit is refused by its field's name, because the person who typed it can change it. The
defaults were chosen for blocks of 16 and long contexts: on a server those that nobody typed give way, and a finding says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping

from labs.protocol import LabSession
from labs.targets.base import TargetUnavailable


def fit_sizes(session: LabSession, config: Any, sizes: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The configuration with these sizes, but for fields that were typed; and a finding, if any changed.

    Raises TargetUnavailable when the configuration does not take them: beside what was typed, the lab does not fit.
    """
    changed = {name: size for name, size in sizes.items() if name not in session.typed and getattr(config, name) != size}
    if not changed:
        return config, []
    try:
        fitted = replace(config, **changed)
    except ValueError as error:
        raise TargetUnavailable(f"the lab does not fit the longest prompt of this server: {error}") from error
    session.fitted(fitted)
    told = ", ".join(f"{name} {_shown(getattr(config, name))} → {_shown(size)}" for name, size in changed.items())
    return fitted, [f"sizes fitted to this server's block and longest prompt: {told}; --set leaves one as typed"]


def _shown(size: Any) -> str:
    return ", ".join(map(str, size)) if isinstance(size, tuple) else str(size)
