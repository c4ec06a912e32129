"""Whatever is done to the pool, the tree, the manager and the scheduler, in whatever order, their books stay right."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engine.state_machines.manager_machine import manager_machine
from tests.engine.state_machines.pool_machine import PoolMachine
from tests.engine.state_machines.scheduler_machine import scheduler_machine
from tests.engine.state_machines.tree_machine import tree_machine


def run(machine, *, runs: int, rules: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=runs, stateful_step_count=rules, deadline=None))


def test_the_pool_hands_out_shares_and_takes_back_as_a_list_would():
    run(PoolMachine, runs=40, rules=30)


@pytest.mark.parametrize("page_size", [1, 4])
def test_the_radix_tree_stores_and_evicts_as_a_dict_of_prefixes_would(page_size):
    run(tree_machine(page_size), runs=40, rules=30)


@pytest.mark.parametrize(("cache", "unit"), [("hash", 1), ("hash", 4), ("radix", 1), ("radix", 4), ("radix", 16)])
def test_every_hit_holds_the_requests_own_prefix_and_every_block_has_as_many_references_as_users(cache, unit):
    run(manager_machine(cache, unit), runs=32, rules=30)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize(("cache", "unit"), [("hash", 4), ("radix", 1), ("radix", 4)])
def test_whatever_is_aborted_preempted_or_fails_everybody_else_is_served_and_nothing_is_lost(cache, unit, policy):
    run(scheduler_machine(cache, unit, policy), runs=26, rules=15)
