"""Length check: prompts that are too long are refused by the field that makes them so."""

from __future__ import annotations

from typing import Any, Collection

from engine.errors import ConfigError


def check_length(
    config: Any, most: int, context: str = "with this model", typed: Collection[str] = (), **tokens: int
) -> None:
    """Refuse lengths that together exceed `most` tokens, by the name of the longest, or of the longest that a person set.

    tokens   by field of `config`: what each adds; of a tuple's field, its largest
    context  what `most` follows from, for people
    typed    fields that a person set, where the others were fitted to them

    Raises ConfigError: "field is VALUE; accepted: at most …".
    """
    if sum(tokens.values()) <= most:
        return
    longest = max([name for name in tokens if name in typed] or tokens, key=tokens.__getitem__)
    others = sum(tokens.values()) - tokens[longest]
    if others < most:
        accepted = f"at most {most - others} {context}"
    else:
        accepted = f"less than {most} together with {', '.join(name for name in tokens if name != longest)}, {context}"
    raise ConfigError(longest, getattr(config, longest), accepted)
