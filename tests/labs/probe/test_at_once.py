"""Requests at once are judged by their replies, or by the counters over all of them; never by a part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.probe.at_once import AtOnce
from labs.probe.repeat_series import RepeatSeries
from labs.probe.sent import BURST, TOGETHER, UNKNOWN
from labs.servers.prefix_counters import CounterReading
from tests.labs.probe.fake_sight import LAW, sent, sight


def group(*found, counted=UNKNOWN, gap_s=0.0):
    """Requests of 100 tokens that found so much, each begun so long after the one before; they take 0.1 s."""
    fields = {"counted": UNKNOWN, "seconds": 0.1}
    return AtOnce(tuple(sent(TOGETHER, 1, at, 100, one, at_s=gap_s * at, **fields) for at, one in enumerate(found)), counted)


def test_replies_tell_who_missed():
    assert group(96, 96, 0, 96).num_missed(96, 0) == 1
    assert group(96, 16, 16, 96).num_missed(96, 16) == 2, "what every new prompt finds is a miss"


def test_counters_tell_it_where_they_grew_by_all_of_them_and_nothing_else():
    blind = (None,) * 4
    assert group(*blind, counted=CounterReading(400, 4 * 96)).num_missed(96, 0) == 0
    assert group(*blind, counted=CounterReading(400, 96)).num_missed(96, 0) == 3
    for counted in (UNKNOWN, CounterReading(300, 288), CounterReading(401, 384)):
        assert group(*blind, counted=counted).num_missed(96, 0) is None
    assert group(96, None, 96, 96).num_missed(96, 0) is None and AtOnce(()).num_missed(96, 0) is None


def test_how_many_were_abreast_shows_whether_they_were_at_once():
    assert group(0, 0, 0, 0).num_abreast == 4 and group(0, 0, 0, 0).is_abreast
    assert not (group(0).is_abreast or group(0, 0, 0, 0, gap_s=0.06).is_abreast)
    assert group(0, 0, 0, 0, gap_s=0.06).num_abreast == 2
    assert group(0, 0, 0, 0, gap_s=0.2).num_abreast == 1 and AtOnce(()).num_abreast == 0


class FakeAsker:
    """Notes what is sent at once; each group is one that was made before."""

    def __init__(self, groups):
        self.observations, self._groups = sight(law=LAW), list(groups)
        self.observations.sent = [one for one in self.observations.sent if one.purpose != TOGETHER]
        self.observations.at_once = []

    def ask_at_once(self, prompt, times):
        made = self._groups.pop(0)
        sent = tuple(replace(one, prompt=prompt) for one in made.sent)
        self.observations.at_once.append(AtOnce(sent))


ABREAST, APART = group(96, 96, 96, 96), group(96, 96, 96, 96, gap_s=0.2)
MISSED, ONE = group(96, 0, 0, 96), group(96)


@pytest.mark.parametrize(
    "groups, expected",
    [
        ([ABREAST], [1, 0, 0]),
        ([APART, ABREAST], [1, 1, 0]),
        ([APART, APART], [1, 1, 0]),  # no more than one more try
        ([ONE], [1, 0, 0]),  # the server takes no more of one client
        ([MISSED, ABREAST, MISSED], [2, 1, 0]),
        ([APART, MISSED, ABREAST, MISSED], [1, 2, 1]),
    ],
)
def test_requests_that_were_not_at_once_after_all_are_sent_once_more(groups, expected):
    asker, num_sent = FakeAsker(groups), []
    series = RepeatSeries(asker)
    for turns in asker.observations.turns_of(BURST):
        before = len(asker.observations.at_once)
        series._ask_at_once(turns[0].prompt)
        num_sent.append(len(asker.observations.at_once) - before)
    assert num_sent == expected
