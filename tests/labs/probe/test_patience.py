"""A busy server is asked again, as often and as late as it may be."""

import pytest

from labs.probe import patience
from labs.probe.budget import ProbeBudget, ProbeLimits
from labs.probe.patience import MAX_RETRIES, with_patience
from labs.servers.server_client import LimitReached, ServerRefused


class Answers:
    """Refuses with these, one after the other, and then answers."""

    def __init__(self, *refusals):
        self.refusals, self.num_turned_away = list(refusals), 0

    def ask(self):
        if self.refusals:
            raise self.refusals.pop(0)
        return "answer"

    def turned_away(self):
        self.num_turned_away += 1


@pytest.fixture
def pauses(monkeypatch):
    waited = []
    monkeypatch.setattr(patience.time, "sleep", waited.append)
    return waited


def ask(answers, **limits):
    budget = ProbeBudget(ProbeLimits(**limits))
    return with_patience(answers.ask, budget, answers.turned_away), budget


def test_a_refusal_is_asked_again_after_what_the_server_wishes(pauses):
    answers = Answers(ServerRefused("busy", 503, 2.0), ServerRefused("busy", 429), ServerRefused("busy", 503, 900.0))
    found, budget = ask(answers)
    assert (found, answers.num_turned_away, budget.num_requests) == ("answer", 3, 3)
    assert pauses == [2.0, 2 * patience.RETRY_S, patience.MAX_RETRY_S]


def test_a_server_that_stays_busy_fails_in_the_end(pauses):
    answers = Answers(*(ServerRefused("busy", 503) for _ in range(9)))
    with pytest.raises(ServerRefused):
        ask(answers)
    assert len(answers.refusals) == 9 - 1 - MAX_RETRIES


def test_other_refusals_are_not_asked_again(pauses):
    with pytest.raises(ServerRefused):
        ask(Answers(ServerRefused("broken", 500)))
    assert pauses == []


def test_the_probes_limits_hold_for_retries_too(pauses):
    with pytest.raises(LimitReached):
        ask(Answers(*(ServerRefused("busy", 503) for _ in range(3))), max_requests=1)
    with pytest.raises(ServerRefused):
        ask(Answers(ServerRefused("busy", 503, 4.0)), max_seconds=2)
