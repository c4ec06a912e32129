"""Notes are bounded, however much there is to notice."""

from __future__ import annotations

from labs.servers.server_notes import MAX_EXAMPLES, ServerNotes


def test_notes_are_said_once_and_disagreements_are_bounded():
    notes = ServerNotes()
    notes.add("a"), notes.add("a"), notes.shared(120, 60)
    for number in range(MAX_EXAMPLES + 3):
        notes.disagreement(number, 0, 1984)
    first, disagreement, shared = notes.take()
    assert (
        first == "a"
        and "in 8 requests: request 0: usage 0, counters 1,984;" in disagreement
        and disagreement.endswith("and 3 more")
    )
    assert shared.startswith("others use this server, or it counts lookups more than once") and "once, usually to ×2.00" in shared


def test_each_record_gets_the_notes_of_its_own_lab_and_what_is_always_true():
    notes = ServerNotes()
    notes.add("no reset"), notes.keep()
    notes.add("of the first lab"), notes.shared(7, 0), notes.disagreement(1, 0, 16)
    notes.silent(None), notes.impossible(), notes.lost(5)
    found = notes.take()
    assert len(found) == 6 and not any("×" in note or "replies report" in note or "miss" in note for note in found)
    notes.add("of the second lab")
    assert notes.take() == ("no reset", "of the second lab")
    assert notes.take() == ("no reset",)


def test_counters_that_fell_are_told_with_what_that_means():
    notes = ServerNotes()
    notes.fell(), notes.fell()
    (line,) = notes.take()
    assert "fell 2 times" in line and "restarted, with an empty cache, or another replica" in line
    assert notes.take() == ()
