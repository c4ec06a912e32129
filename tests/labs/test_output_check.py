"""Cold and warm output: equal, a near tie proven in float32, or a fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.output_check import (
    HALF_NEAR_TIE,
    check_outputs,
    compare_on_server,
    judge_on_server,
    num_unexplained,
    output_law,
)
from labs.targets.base import Completion
from tests.labs.fake_server_target import FakeServer
from tests.labs.fake_session import FakeSession


def completion(tokens, gaps=(2.0, 0.1, 2.0)) -> Completion:
    return Completion(tuple(tokens), 10, 0, 0.1, 0.2, "length", tuple(gaps))


def check(cold, again, warm, **fields):
    return check_outputs(completion(cold, **fields), completion(again), completion(warm))


EQUAL = check([1, 2, 3], [1, 2, 3], [1, 2, 3])
WARM_PARTS = check([1, 2, 3], [1, 2, 3], [1, 9, 9])
COLD_PARTS = check([1, 2, 3], [9, 2, 3], [1, 2, 3])
TIE = check([1, 2, 3], [1, 2, 3], [1, 9, 9], gaps=(2.0, 1e-5, 2.0))


@pytest.mark.parametrize(
    ("found", "dtype", "proof", "unexplained"),
    [
        (EQUAL, "bfloat16", None, 0),
        (WARM_PARTS, "bfloat16", EQUAL, 0),
        (COLD_PARTS, "bfloat16", EQUAL, 0),
        (WARM_PARTS, "bfloat16", WARM_PARTS, 1),
        (WARM_PARTS, "bfloat16", None, 1),
        (WARM_PARTS, "float32", None, 1),
        (TIE, "float32", None, 0),
        (WARM_PARTS, "bfloat16", TIE, 0),
    ],
)
def test_a_difference_is_excused_only_by_float32(found, dtype, proof, unexplained):
    assert num_unexplained(found, dtype, proof) == unexplained


def test_the_text_says_who_parted_where():
    assert "all 3 tokens equal" in EQUAL.text and "0.1" in EQUAL.text
    assert "cold and warm output part at output token 1" in WARM_PARTS.text
    assert "two cold runs part at output token 0" in COLD_PARTS.text


def test_no_output_may_differ_where_it_could_and_nothing_is_predicted_where_it_cannot():
    law = output_law("engine")
    assert law.value == 0 and "do not depend on the cache" in law.law
    assert "preemption" in output_law("engine", "preemption").law and output_law("sim") is None


@pytest.mark.parametrize(
    ("found", "judged", "words"),
    [
        (EQUAL, 0, ""),
        (COLD_PARTS, None, "answers the same prompt differently without it"),
        (check([1, 2, 3], [1, 2, 3], [1, 9, 9], gaps=()), None, "does not tell how close"),
        (WARM_PARTS, 0, "A near tie"),
        (check([1, 2, 3], [1, 2, 3], [1, 9, 9], gaps=(2.0, 0.3, 2.0)), 1, "NOT a near tie"),
    ],
    ids=["equal", "two cold runs part", "no gaps", "near tie", "wide gap"],
)
def test_on_a_server_a_difference_is_judged_only_beyond_what_half_precision_can_move(found, judged, words):
    verdict, why = judge_on_server(found)
    assert verdict == judged and words in why


def test_equal_outputs_without_gaps_are_equal_all_the_same():
    found = check([1, 2], [1, 2], [1, 2], gaps=())
    assert judge_on_server(found) == (0, "") and "gap of the two best tokens unknown" in found.text


def test_a_server_that_answers_otherwise_when_warm_does_not_pass():
    class WrongWhenWarm:
        """Says another last token when anything came from the cache."""

        def __init__(self, inside):
            self._inside, self.info = inside, inside.info

        def __getattr__(self, name):
            return getattr(self._inside, name)

        def complete(self, *arguments, **fields):
            found = self._inside.complete(*arguments, **fields)
            ids = found.output_token_ids
            return replace(found, output_token_ids=(*ids[:-1], ids[-1] + 1)) if found.num_cached_tokens else found

    session = FakeSession(FakeServer())
    target = WrongWhenWarm(session.open_target())
    found, cold = compare_on_server(session, target, "t", range(100), range(500, 520), 4)
    assert cold and (found.control_parted, found.parted, found.has_control) == (None, 3, True)
    assert judge_on_server(found)[0] == int(found.gap >= HALF_NEAR_TIE)


class Telling:
    """Says of its runs (cold, again, warm) what is given, once the cache was proven cold; the outputs stay as they are."""

    def __init__(self, inside, told):
        self._inside, self.info, self._told = inside, inside.info, iter(told)

    def __getattr__(self, name):
        return getattr(self._inside, name)

    def complete(self, prompt, **fields):
        found = self._inside.complete(prompt, **fields)
        return replace(found, num_cached_tokens=next(self._told)) if fields.get("logprob_gaps") else found


@pytest.mark.parametrize(
    ("told", "num_front", "verdict", "words"),
    [
        ((0, 0, 96), 0, 0, "cold, cold again and warm: all 4 tokens equal (96 of"),
        ((None, None, None), 0, 0, "cold, again (whether cold is not told) and warm: all 4 tokens equal (unknown how many of"),
        ((0, 96, 96), 0, 0, "cold and warm (the second cold run was not cold)"),
        ((0, 0, 0), 0, None, "all 4 tokens equal (0 of"),
        ((16, 16, 96), 20, 0, "cold, cold again and warm"),
        ((16, 32, 96), 20, 0, "the second cold run was not cold"),
        ((16, 16, 16), 20, None, "all 4 tokens equal"),
    ],
)
def test_cold_warm_and_untold_are_three_things(told, num_front, verdict, words):
    session = FakeSession(FakeServer(num_front=num_front))
    found, _ = compare_on_server(session, Telling(session.open_target(), told), "t", range(100), range(500, 520), 4)
    assert judge_on_server(found)[0] == verdict and words in found.text


def test_what_parts_where_cold_is_not_told_is_nobody_s_fault():
    found = replace(COLD_PARTS, has_control=None)
    assert judge_on_server(found) == (None, ". Not judged: which of the runs were cold is not told")
