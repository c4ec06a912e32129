"""A chat is predicted turn by turn before it is sent, and what came back as other ids is told by its place and its cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.caches import hash_cache
from labs.protocol import Prediction
from labs.scenarios.conversation import DatedSystem, EchoedIds, MergedIds
from labs.scenarios.served_chat import Chat, ChatPlan, Turn, serve_chats
from labs.targets.base import Completion, TargetUnavailable
from tests.labs.fake_server_target import FakeServer
from tests.labs.fake_session import FakeSession

USERS = tuple((800 + number, *range(7)) for number in range(3))  # 8 tokens a turn


def system(first: int, num_tokens: int = 24) -> tuple[int, ...]:
    return (first, *range(num_tokens - 1))


def plans() -> list[ChatPlan]:
    return [
        ChatPlan("echoed", EchoedIds(system(700), USERS), (17, 17, 1), is_echo=True),
        ChatPlan("merged", MergedIds(system(701), USERS, 3, (790, 791)), (17, 17, 1)),
        ChatPlan("dated", DatedSystem(system(702), USERS, 5, (780, 781, 782)), (17, 17, 1)),
    ]


def test_every_turn_finds_what_was_predicted_and_tells_where_its_history_parts():
    session, cache = FakeSession(), hash_cache(16)
    measurements, chats = serve_chats(session, session.open_target(**cache.engine_fields), cache, plans())
    echoed, merged, dated = chats
    assert session.measurements == measurements and all(one.agrees for one in measurements)
    # Prompts of 32, 57 and 82 tokens, answers of 17: 48 and 73 were computed, 32 and 57 without the answer.
    assert [(turn.offered, turn.prompt_only, turn.echoed, turn.hits) for turn in echoed.turns] == [
        (0, 0, 0, 0), (48, 32, 48, 48), (73, 48, 64, 64),
    ]  # fmt: skip
    assert [turn.parted_at for turn in echoed.turns] == [None, None, None] and echoed.lost == 0
    assert [(turn.hits, turn.parted_at) for turn in merged.turns] == [(0, None), (32, 3), (48, 3)]
    assert merged.lost == (48 - 32) + (64 - 48)
    assert [(turn.hits, turn.parted_at) for turn in dated.turns] == [(0, None), (0, 5 - 32), (0, 5 - 57)]
    assert echoed.parting == "its ids came back as they were"
    assert merged.parting == "2 of 2 histories part from what was said, the first at token 3 of the answer"
    assert dated.parting == "2 of 2 histories part from what was said, the first 27 token(s) before the prompt's end"
    assert merged.by_turn[1] == {"offered": 48, "predicted_hits": 32, "hits": 32, "parted_at": 3}


def test_the_last_sampled_token_has_no_keys_and_values_whichever_way_a_turn_is_predicted():
    session, cache = FakeSession(), hash_cache(16)
    both = [ChatPlan(f"{is_echo}", EchoedIds(system(700 + is_echo), USERS), (16, 1), is_echo) for is_echo in (False, True)]
    measurements, chats = serve_chats(session, session.open_target(**cache.engine_fields), cache, both)
    # 32 + 16 tokens fill three blocks, but only 47 of them were computed.
    assert [chat.turns[1].law.value for chat in chats] == [32, 32] and all(one.agrees for one in measurements)


def test_a_turn_that_finds_something_else_does_not_pass_and_is_counted_as_lost():
    def turn(hits: int | None) -> Turn:
        return Turn(48, 32, 48, Prediction(48, ""), None, Completion((1,), 56, hits, 0.1, 0.2, "length"))

    plan = ChatPlan("echoed", EchoedIds(system(700), USERS), (17, 1), is_echo=True)
    found = {one.name: one for one in Chat(plan, (turn(48), turn(32))).measurements("t")}
    assert found["turn 1"].agrees and found["turn 2"].agrees is False
    assert (found["lost"].value, found["lost"].predicted.value, found["lost"].agrees) == (16, 0, False)
    untold = Chat(plan, (turn(48), turn(None)))
    assert untold.lost is None and [one.name for one in untold.measurements("t")] == ["turn 1"]


def test_ids_that_a_server_keeps_to_itself_cannot_be_sent_back():
    session = FakeSession(FakeServer(tells_ids=False))
    with pytest.raises(TargetUnavailable, match="accepted: a server that takes return_token_ids"):
        serve_chats(session, session.open_target(), replace(hash_cache(16), engine_fields={}), plans())
