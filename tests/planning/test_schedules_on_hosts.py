"""Schedules of heuristics that know of no host, realised on machines with hosts: rounded up to what these can do."""

import time
from random import Random
from threading import Event

from check.reckoning import is_right
from problem.test_naive_step import a_step

from dlplacer.check import violations
from dlplacer.planning.assemble import in_seconds, plan_of
from dlplacer.solvers.instance.schedule import Budget, Outcome
from dlplacer.solvers.methods import METHODS


def test_schedules_with_and_without_transfers_keep_the_rules_of_hosts() -> None:
    found = {True: 0, False: 0}
    for seed in range(40):
        problem, _, _ = a_step(seed)
        method = METHODS[Random(seed).choice(["heft", "list", "sequential"])]
        schedule = method(problem, Budget(time.monotonic() + 30, 0.0, 0, 1, Event())).schedule
        if schedule is None:
            continue
        plan = plan_of(problem, *in_seconds(problem, schedule), Outcome(None, 0), "", 0.0, {})
        assert violations(plan) == (), seed
        assert is_right(plan), seed
        found[schedule.transfers is not None] += 1
    assert min(found.values()) > 10
