"""Requests at once are judged by their replies, or by the counters over all of them; never by a part."""

from __future__ import annotations

from labs.probe.at_once import AtOnce
from labs.probe.sent import TOGETHER, UNKNOWN
from labs.servers.prefix_counters import CounterReading
from tests.labs.probe.fake_sight import sent


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
    assert group(0, 0, 0, 0).num_abreast == 4
    assert group(0, 0, 0, 0, gap_s=0.06).num_abreast == 2
    assert group(0, 0, 0, 0, gap_s=0.2).num_abreast == 1 and AtOnce(()).num_abreast == 0
