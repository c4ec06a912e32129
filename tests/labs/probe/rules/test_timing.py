"""Are repeats answered sooner: weak evidence, and only where there is enough of it."""

from __future__ import annotations

import re

from labs.probe import sent as kinds
from tests.labs.probe.fake_sight import LAW, sight, with_times
from tests.labs.probe.verdicts import text_of, verdict


def test_times_are_compared_with_new_prompts_and_never_with_the_first_request():
    assert verdict(with_times(sight(law=LAW), 0.1, 0.8), "timing") == ("fine", "weak")
    # The first request took 15 s, and repeats are as fast as prompts that nobody sent: warm-up, no reuse.
    assert verdict(with_times(sight(law=LAW), 1.28, 1.27), "timing") == ("cannot tell", "weak")


def test_too_few_times_say_how_many_more_are_needed():
    seen = with_times(sight(law=LAW), 0.07, 5.0)
    seen.sent, seen.seconds = [one for one in seen.sent if one.purpose != kinds.TIMING or one.turn + one.prompt - 900 < 4], 48.0
    assert verdict(seen, "timing") == ("cannot tell", "weak")
    assert re.search(
        r"7 repeats and as many new prompts are enough, \d+ requests more: about --max-seconds \d+0\.", text_of(seen, "timing")
    )


def test_repeats_that_are_hardly_sooner_tell_nothing():
    for factor, expected in ((0.85, "cannot tell"), (0.6, "fine")):
        assert verdict(with_times(sight(law=LAW), 0.4 * factor, 0.4), "timing") == (expected, "weak")
