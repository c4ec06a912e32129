"""Every lab in the catalog runs with its quick configuration and meets its predictions, on the simulated target."""

from __future__ import annotations

import pytest

from labs.catalog import find_labs
from tests.labs.fake_session import FakeSession


@pytest.mark.parametrize("entry", find_labs(), ids=lambda entry: entry.label)
def test_a_lab_meets_its_predictions_on_the_simulated_target(entry):
    lab, session = entry.load(), FakeSession()
    report = lab.run(session, lab.quick)
    assert report.agrees and report.cache_state == "cold" and report.findings and report.conclusion
    assert any(one.predicted is not None for one in report.measurements)
    # An interrupted run keeps what the session was told: everything the report has must have been told.
    assert tuple(session.measurements) == report.measurements
    assert session.done == session.expected


@pytest.mark.parametrize("entry", find_labs(), ids=lambda entry: entry.label)
def test_a_lab_teaches_before_it_runs(entry):
    lab = entry.load()
    module = __import__(lab.run.__module__, fromlist=["__doc__"])
    for heading in ("Background", "Predicted", "How to read it", "Sources"):
        assert heading in module.__doc__
    assert lab.question.endswith("?")
