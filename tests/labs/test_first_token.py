"""First tokens are compared prompt by prompt, and what cannot be judged is counted and said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import EngineConfig
from labs.caches import hash_cache
from labs.first_token import FirstTokens
from labs.protocol import Measurement
from labs.targets.base import Completion
from labs.targets.open_target import open_target_factory
from tests.labs.fake_session import FakeSession

CACHE, PROMPT = hash_cache(4), tuple(range(9))
CANARY = (200,) * 9


@pytest.fixture(scope="module")
def real() -> FakeSession:
    return FakeSession(open_target_factory("engine", EngineConfig(model="synthetic:tiny", dtype="float32", device="cpu")))


def compared(session: FakeSession, *pairs) -> FirstTokens:
    first_tokens = FirstTokens(session, CACHE, CANARY)
    target = session.open_target(**CACHE.engine_fields)
    for change in pairs:
        cold, warm = (target.complete(PROMPT, logprob_gaps=True) for _ in range(2))
        first_tokens.compare(target, PROMPT, cold, change(warm))
    target.close()
    return first_tokens


def same(warm: Completion) -> Completion:
    return warm


def other(warm: Completion) -> Completion:
    return replace(warm, output_token_ids=(warm.output_token_ids[0] ^ 1,))


def untold(warm: Completion) -> Completion:
    return replace(warm, output_token_ids=())


def only(first_tokens: FirstTokens) -> Measurement:
    (one,) = first_tokens.measurements("checks")
    return one


def test_another_token_is_counted_and_misses_the_prediction(real):
    assert (only(compared(real, same, same)).value, only(compared(real, same, same)).agrees) == (0, True)
    one = only(compared(real, same, other, other))
    assert (one.value, one.agrees, one.row, one.unit) == (2, False, CACHE.title, "prompts")


def test_what_is_not_told_is_left_out_and_said(real):
    partly = compared(real, same, untold)
    assert only(partly).value == 0 and partly.findings == [
        f"{CACHE.title}: 1 of 2 first tokens are not judged: the server does not tell the ids it generated or how close the two "
        "best tokens were, or the repeat found nothing"
    ]
    assert compared(real, untold).measurements("checks") == [] and compared(real, same).findings == []


def test_simulated_tokens_are_compared_and_not_judged():
    one = only(compared(FakeSession(), same))
    assert one.predicted is None and one.value == 0 and "cannot fail here" in one.note
