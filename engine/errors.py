"""Every error the engine raises on purpose.

    EngineError
    ├── ConfigError      (ValueError)  a field of a configuration is outside its accepted range
    ├── RequestRefused   (ValueError)  a request that these limits can never serve
    ├── ModelNotFound                  no such model here, and how to get it
    ├── ModelNotSupported              the model cannot be served exactly, and why
    └── MissingPackage                 an optional package is not installed, and the command that installs it

`labcli/main.py` turns each into one line on stderr; messages therefore name what was wrong and what is
accepted, and never contain prompts, salts or keys.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors below; catching it never hides a programming mistake."""


class ConfigError(EngineError, ValueError):
    """A configuration field holds a value outside its accepted range."""

    def __init__(self, field: str, value: object, accepted: str) -> None:
        super().__init__(f"{field} is {value!r}; accepted: {accepted}")
        self.field, self.value, self.accepted = field, value, accepted


class RequestRefused(EngineError, ValueError):
    """A request that can never be served under the engine's limits; the message names the limit."""


class ModelNotFound(EngineError):
    """The model is not on this machine; the message says how to get it."""


class ModelNotSupported(EngineError):
    """The model loads, but the engine could not serve it exactly; the message names the reason."""


class MissingPackage(EngineError):
    """An optional package is needed and absent; the message names the command that installs it."""
