"""What is judged of a sight, in the few words that a test compares."""

from __future__ import annotations

from labs.probe.judgement import judge


def verdict(seen, name):
    found = [one for one in judge(seen) if one.name == name]
    return (found[0].state, found[0].confidence) if found else None


def faults(seen):
    return [one.name for one in judge(seen) if one.is_fault]


def text_of(seen, name):
    (found,) = [one for one in judge(seen) if one.name == name]
    return " | ".join((found.finding, *found.evidence, found.next_step))
