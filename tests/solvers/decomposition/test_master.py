"""Series that share blocks: the best agreement against the whole model."""

import time
from random import Random

import pytest
from solvers.helpers import broken_rules, make_instance, make_machine, no_bounds, one_worker

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.decomposition.master import MasterProblem
from dlplacer.solvers.decomposition.segments import find_segments
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.decomposition.series_search import search_series
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, search
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule


def forward_and_backward(seed: int, blocks: int) -> OpGraph:
    """Blocks of two branches and a join, forward and backward; what adds up gradients is held with a branch's op."""
    random = Random(seed)
    ops = {"start": Op("start", "test", time_s=1)}
    edges: list[Edge] = []

    def add(name: str, group: str, sources: list[str]) -> str:
        ops[name] = Op(name, "test", time_s=random.choice([1, 2, 4, 7]), colocate=group)
        edges.extend(Edge(source, name, random.choice([1, 2, 6])) for source in sources)
        return name

    here = "start"
    branches: list[list[str]] = []
    for number in range(blocks):
        branches.append([add(f"f{number}.{branch}", f"{number}.{branch}", [here]) for branch in range(2)])
        here = add(f"join{number}", f"join{number}", branches[-1])
    for number in reversed(range(blocks)):
        into = [add(f"b{number}.{branch}", f"{number}.{branch}", [here]) for branch in range(2)]
        here = add(f"sum{number}", f"{max(0, number - 1)}.{random.randrange(2)}", into)
    return OpGraph(tuple(ops.values()), tuple(edges))


def _agreed(instance: Instance) -> tuple[int, int, Schedule | None]:
    """The sum of the series' own optima, the bound of their agreement, and the best schedule found."""
    bounds = lower_bounds(instance)
    last = max(range(instance.op_count), key=lambda op: bounds.head[op] + instance.shortest[op])
    chain = SegmentChain.of(instance, find_segments(instance, last), one_worker())
    chain.advance(30.0, time.monotonic() + 60.0, search_series)
    assert not chain.open
    whole = Incumbent(one_worker())
    for schedule in chain.candidates():
        whole.offer(schedule)
    free = chain.raised(bounds, 1.0).makespan
    after = instance.shortest[last] + bounds.tail[last]

    def offer(ticks: int, schedules: list[Schedule]) -> int | None:
        whole.raise_bound(ticks + after)
        for schedule in schedules:
            assert not broken_rules(instance, schedule)
            whole.offer(schedule)
        return None if whole.closed or whole.best is None else whole.best.makespan - after - 1

    MasterProblem(chain).reach(search_series, offer, time.monotonic() + 60.0)
    return free, whole.bound, whole.best


def _optimum(instance: Instance, upper: int) -> int:
    incumbent = Incumbent(one_worker())
    built = build_model(instance, no_bounds(instance), upper)
    assert search(*built, instance, incumbent, 60.0) is SearchEnd.OPTIMAL
    return incumbent.bound


@pytest.mark.parametrize("seed", range(5))
def test_the_agreement_never_exceeds_the_optimum_and_beats_the_sum(seed: int) -> None:
    instance = make_instance(forward_and_backward(seed, 3), make_machine(2 + seed % 2))
    free, bound, best = _agreed(instance)
    assert best is not None
    assert free <= bound <= _optimum(instance, best.makespan) <= best.makespan


def test_agreement_closes_what_the_sum_leaves_open() -> None:
    won = 0
    for seed in range(12):
        instance = make_instance(forward_and_backward(seed, 3), make_machine(2))
        free, bound, best = _agreed(instance)
        assert best is not None
        won += free < bound == best.makespan
    assert won >= 2
