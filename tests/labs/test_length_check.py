"""Prompts that are too long are refused by the field that makes them so, with a range that can be met."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from labs.length_check import check_length


@dataclass(frozen=True)
class Config:
    shared_tokens: int = 10
    user_tokens: tuple[int, ...] = (1, 5)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 60))
def test_what_fits_passes_and_else_the_longest_is_named(shared, user, most):
    config, tokens = Config(shared), {"shared_tokens": shared, "user_tokens": user}
    if shared + user <= most:
        check_length(config, most, **tokens)
        return
    with pytest.raises(ConfigError) as caught:
        check_length(config, most, **tokens)
    longest, other = (shared, user) if shared >= user else (user, shared)
    assert tokens[caught.value.field] == longest
    if other < most:
        # The range that is named can be met, and meets the limit.
        assert caught.value.accepted == f"at most {most - other} with this model"
    else:
        assert caught.value.accepted.startswith(f"less than {most} together with ")


def test_a_tuple_is_shown_as_it_was_set():
    with pytest.raises(ConfigError, match=r"user_tokens is \(1, 99\); accepted: at most 90 of a pool"):
        check_length(Config(user_tokens=(1, 99)), 100, "of a pool", shared_tokens=10, user_tokens=99)
