"""Annealing has its time whatever comes before it, and looks where its plans are refused."""

import math
import time
from typing import Any

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import star
from solvers.helpers import one_worker

from dlplacer.core.options import Options
from dlplacer.problem.problem import build_problem
from dlplacer.solvers import phases
from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.local_search import anneal, compile_ahead
from dlplacer.solvers.local_search.arrays import build_arrays
from dlplacer.solvers.local_search.chain import Chain
from dlplacer.solvers.local_search.greedy_schedules import best_greedy

_FOREVER_S = 1e6


def _begun() -> tuple[Instance, Incumbent]:
    """A list schedule that annealing makes a tenth shorter, and code that is compiled."""
    instance = build_instance(build_problem(FAMILIES["layered"](150, 0, 3.0), star(4), Options()))
    incumbent = Incumbent(one_worker(_FOREVER_S))
    found, built = list_schedule(instance, instance.order), build_arrays(instance)
    assert incumbent.offer(found)
    assert found is not None
    assert built is not None
    Chain.of(instance, *built, found).go_on(0, 0.0, 0)
    best_greedy((instance, *built), [range(4)], math.inf, math.inf)
    return instance, incumbent


def test_what_comes_before_it_is_no_cycle_that_brings_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    instance, incumbent = _begun()
    assert incumbent.best is not None
    known, first_chains = incumbent.best.makespan, anneal._first_chains

    def slowly(*arguments: Any) -> list[Chain]:
        time.sleep(0.8)
        return first_chains(*arguments)

    monkeypatch.setattr(anneal, "_first_chains", slowly)
    anneal.anneal_schedule(instance, incumbent, 2.0)
    assert incumbent.best.makespan < known


def test_refused_plans_are_looked_at_more_often() -> None:
    instance, incumbent = _begun()
    seen: list[int] = []
    incumbent.admits = lambda schedule: bool(seen.append(schedule.makespan))
    anneal.anneal_schedule(instance, incumbent, 6.0)
    # A cycle is 1.5 s, three chunks of the usual length; the first trials are one more.
    assert len(seen) >= 8


class SlowChain:
    """A chain whose trials take a millisecond at least."""

    def __init__(self, makespan: int) -> None:
        self.makespan, self.trials = makespan, [0]

    def go_on(self, trials: int, temperature: float, seed: int) -> bool:
        self.trials.append(trials)
        time.sleep(1e-3 * trials)
        return False


def test_the_first_trials_are_seen_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    instance, incumbent = _begun()
    assert incumbent.best is not None
    chain = SlowChain(incumbent.best.makespan)
    monkeypatch.setattr(anneal, "_first_chains", lambda *arguments: [chain])
    monkeypatch.setattr(anneal, "_restart", lambda chains: None)
    anneal.anneal_schedule(instance, incumbent, 0.1)
    # 0.1 s allow 100 trials, and as many again in a last chunk that began within them.
    assert 0 < sum(chain.trials) < 250


@pytest.mark.parametrize("kept", [False, True])
def test_a_short_limit_has_time_for_code_that_is_kept(monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    instance, incumbent = _begun()
    incumbent.budget = one_worker(3.0)
    asked: list[float] = []
    monkeypatch.setattr(compile_ahead, "is_kept", lambda *names: kept)
    monkeypatch.setattr(anneal, "anneal_schedule", lambda instance, incumbent, seconds: asked.append(seconds))
    phases._anneal(instance, incumbent, 0.5)
    assert bool(asked) == kept
