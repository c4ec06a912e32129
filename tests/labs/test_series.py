"""A cache is called cold when it was proven so; a server that says so and is not gets other token ids."""

from __future__ import annotations

import pytest

from labs.series import prove_cold
from labs.targets.open_server import OpenServer
from tests.labs.fake_session import FakeSession
from tests.labs.servers.fake_server import FakeServer

CANARY = list(range(40))


def proven(fake: FakeServer, **run):
    opened = OpenServer(fake.run(**run), fake.transport)
    session, target = FakeSession(opened), opened()
    return [prove_cold(session, target, CANARY) for _ in range(2)], session, opened


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_reset_that_empties_nothing_is_found_out_and_other_ids_take_its_place(kind):
    cold, session, opened = proven(FakeServer(kind=kind, keeps_content=True))
    assert cold == [True, True] and session.states == ["cold", "cold"]
    assert opened.isolation == "renamed and reset" and any("found after a reset that the server accepted" in note for note in opened.notes())
    assert not any("could not be emptied" in note for note in opened.notes())


def test_where_only_a_reset_will_do_one_that_lies_leaves_the_cache_uncontrolled():
    cold, session, _ = proven(FakeServer(keeps_content=True), isolation="reset")
    assert cold == [False, False] and session.states == ["uncontrolled"] * 2


def test_a_true_reset_is_believed():
    cold, _, opened = proven(FakeServer())
    assert cold == [True, True] and opened.isolation == "reset" and opened.notes() == ()
