"""What was seen tells which witness speaks."""

from __future__ import annotations

from dataclasses import replace

from labs.probe.sent import LADDER
from tests.labs.probe.fake_sight import LAW, changed, sight, unreported


def test_replies_tell_from_the_moment_on_at_which_sglang_s_own_endpoint_is_asked():
    seen = sight(law=LAW)
    assert seen.known_by_usage
    changed(seen, unreported)
    assert not seen.known_by_usage
    begun = seen.of(LADDER)
    seen.sent += [replace(one, native_cached=16) for one in begun]
    assert seen.known_by_usage
    seen.sent.append(begun[0])
    assert not seen.known_by_usage
