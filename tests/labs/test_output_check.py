"""Cold and warm output: equal, a near tie proven in float32, or a fault."""

from __future__ import annotations

import pytest

from labs.output_check import check_outputs, num_unexplained, output_law
from labs.targets.base import Completion


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
