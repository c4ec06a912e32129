"""Repeats that find less than they can, where no rule says why: the report does not end as if nothing were wrong."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from labcli.render.probe_report import print_report
from labs.probe import sent as kinds
from labs.probe.explanation import Explanation
from labs.probe.judgement import judge
from labs.probe.own_rate import OwnRate
from tests.labs.probe.fake_sight import LAW, VLLM, changed, crowded, sent, sight, usage, with_times
from tests.labs.probe.verdicts import faults, text_of, verdict


def half_missing():
    """Half of the timed repeats find nothing; no rule has a name for that."""
    seen = with_times(sight(law=LAW), 0.1, 0.1)
    return changed(seen, lambda one: replace(one, usage=usage(1_025, 1_024 * (one.turn % 2)), counted=kinds.UNKNOWN), kinds.TIMING)


def test_what_no_rule_names_is_told_with_numbers():
    seen = half_missing()
    assert faults(seen) == [] and verdict(seen, "repeats") == ("cannot tell", "weak")
    assert "4 repeats of 1,025 tokens: 0, 0, 0, 0 cached, 1,024 possible" in text_of(seen, "repeats")
    console = Console(width=300, record=True, file=io.StringIO())
    print_report("http://host", seen, judge(seen), console)
    closing = console.export_text().strip().split("\n")[-1]
    assert closing.startswith("No faults found, but repeats that find less than they can, with ")


def test_many_short_repeats_that_miss_are_told_beside_long_ones_that_are_found():
    seen = with_times(sight(law=LAW, burst_hits=[0, 0, 0]), 0.1, 0.1)
    seen.sent.remove(seen.of(kinds.BURST)[-1])
    assert OwnRate.of(seen).num_cached > 0.8 * OwnRate.of(seen).expected
    assert verdict(seen, "repeats") == ("cannot tell", "weak"), "too few on new connections to say why"
    assert "5 repeats of 257 tokens, each on a new connection: 0, 0, 0, 0, 0 cached, 256 possible" in text_of(seen, "repeats")


def test_what_another_rule_names_and_what_misses_once_is_not_told_again():
    assert verdict(sight(law=LAW), "repeats") is None
    assert verdict(sight(law=LAW, burst_hits=[0, 0, 256, 256, 256, 256]), "repeats") is None, "replicas"
    assert verdict(sight(), "repeats") is None, "identity"
    seen = sight(law=LAW)
    seen.sent += [sent(kinds.OWN, 500, turn, 4_097, 0) for turn in (0, 1)]
    assert OwnRate.of(seen).num_cached < 0.8 * OwnRate.of(seen).expected
    assert verdict(seen, "repeats") is None, "one miss may be anything's"


def test_repeats_are_compared_with_the_least_of_several_units():
    seen = sight(replace(VLLM, unit_size=16))
    seen.sent = [sent(kinds.LADDER, 1, turn, 4_097, 3_168 * bool(turn)) for turn in (0, 1, 2)]
    seen.sent += [sent(kinds.BURST, 2, turn, 1_057, 1_056 * bool(turn)) for turn in range(4)]
    assert seen.explanation is None and Explanation(1_056) in seen.explanations
    assert verdict(seen, "repeats") is None


def test_the_own_rate_holds_timed_repeats_and_none_that_the_probe_itself_pushed_out():
    seen, without = with_times(sight(law=LAW), 0.1, 0.1), OwnRate.of(sight(law=LAW))
    assert OwnRate.of(seen).num_repeats == without.num_repeats + 8
    assert OwnRate.of(seen).num_cached == OwnRate.of(seen).expected == without.expected + 8 * 1_024
    seen.facts = replace(seen.facts, pool_tokens=None)
    assert OwnRate.of(seen).num_repeats < without.num_repeats + 2, "of these only the first came at once"


def test_what_others_may_have_pushed_out_is_not_called_unexplained():
    assert "nothing that was seen says why" in text_of(half_missing(), "repeats")
    seen = crowded(half_missing())
    assert verdict(seen, "repeats") == ("cannot tell", "weak") and "others may have pushed" in text_of(seen, "repeats")
    assert "says why" not in text_of(seen, "repeats") and "looked up by others meanwhile" in text_of(seen, "repeats")
