"""Notes are bounded, however much there is to notice."""

from __future__ import annotations

from labs.targets.server_notes import MAX_EXAMPLES, ServerNotes


def test_notes_are_said_once_and_disagreements_are_bounded():
    notes = ServerNotes()
    notes.add("a"), notes.add("a"), notes.shared()
    for number in range(MAX_EXAMPLES + 3):
        notes.disagreement(number, 0, 1984)
    first, disagreement, shared = notes.lines()
    assert (
        first == "a"
        and "in 8 requests: request 0: usage 0, counters 1,984;" in disagreement
        and disagreement.endswith("and 3 more")
    )
    assert shared.startswith("others use this server: 1 times")
