"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# Tests never judge times: a busy machine may take seconds for an example.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
