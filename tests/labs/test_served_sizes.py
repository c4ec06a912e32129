"""Sizes fitted to a server: defaults give way and say so, typed ones stay."""

from __future__ import annotations

from dataclasses import dataclass

from labs.served_sizes import fit_sizes
from tests.labs.fake_session import FakeSession


@dataclass(frozen=True)
class Config:
    shared_tokens: int = 2000
    lengths: tuple[int, ...] = (1, 2)


def test_what_was_not_typed_is_fitted_and_told():
    session = FakeSession()
    config, findings = fit_sizes(session, Config(), {"shared_tokens": 500, "lengths": (3, 4)})
    assert config == Config(500, (3, 4))
    assert session.lab_config == config, "the record holds what was run"
    assert len(findings) == 1 and "shared_tokens 2000 → 500" in findings[0] and "lengths 1, 2 → 3, 4" in findings[0]


def test_a_typed_size_stays_and_nothing_is_said_of_what_fits():
    assert fit_sizes(FakeSession(typed=("shared_tokens",)), Config(), {"shared_tokens": 500}) == (Config(), [])
    assert fit_sizes(FakeSession(), Config(), {"shared_tokens": 2000}) == (Config(), [])
