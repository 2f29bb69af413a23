"""Tiny steps whose processes issue ops ahead: the default method against every placement and order."""

from dataclasses import replace
from random import Random

import pytest
from planning.naive_issue_optimum import naive_issue_optimum
from problem.random_hosts import with_hosts
from solvers.random_problems import random_step

from dlplacer.core.errors import InfeasibleError, NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.compare import compare
from dlplacer.planning.place import place

SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 306)]


@pytest.mark.parametrize("seed", [*range(6), *SLOW])
def test_the_default_method_reaches_the_optimum_and_claims_no_other(seed: int) -> None:
    graph, topology, options = random_step(seed, 5)
    hosted = with_hosts(topology, Random(seed))
    ahead = replace(hosted, devices=tuple(replace(device, asynchronous=True) for device in hosted.devices))
    optimum = naive_issue_optimum(graph, ahead, options)
    if optimum is None:
        with pytest.raises((InfeasibleError, NoPlanError)):
            place(graph, ahead, options)
        return
    plan = place(graph, ahead, options, work_s=1.0).plan
    assert plan.lower_bound_s <= optimum + 1e-9
    assert plan.makespan_s == pytest.approx(float(optimum), abs=1e-9)


# Of five ops one process issues, in 1 or 2 s each; the best plan takes 13 s. Without issues the search ends at 11.
def test_the_search_goes_on_when_the_problem_without_issues_is_proven() -> None:
    times = ({"a": 2, "c": 5}, {"a": 1, "c": 2}, {"a": 4, "c": 6}, {"a": 4, "c": 2}, {"a": 6, "c": 0})
    ops = tuple(
        Op(f"o{n}", "task", time, phase="forward" if n < 2 else "backward")  # type: ignore[arg-type]
        for n, time in enumerate(times)
    )
    sizes = {(0, 1): 8, (0, 2): 8, (0, 4): 0, (1, 2): 0, (1, 4): 8, (2, 3): 4}
    edges = tuple(Edge(f"o{a}", f"o{b}", size, tensor=f"t{a}-{b}") for (a, b), size in sizes.items())
    issued = (("d1", "a", 2.0), ("d0", "a", 1.0), ("d2", "c", 2.0))
    devices = tuple(Device(name, kind, dispatch_s=each_s, process="p") for name, kind, each_s in issued)
    links = (Link("d0", "d1", 4, 2), Link("d2", "d0", 1, 1), Link("d1", "d2", 1))
    options = Options(contention="none", transfers="edge")
    plan = place(OpGraph(ops, edges), Topology(devices, (), links), options, work_s=1.0).plan
    assert plan.makespan_s == 13


# Ten ops of 10 ms one after another and one of 1.5 ms beside them: a second device saves 1.5 %.
def test_the_default_method_keeps_what_gains_little() -> None:
    chain = tuple(Op(f"c{n}", "op", 10e-3) for n in range(10))
    edges = tuple(Edge(f"c{n}", f"c{n + 1}", 8) for n in range(9))
    gpus = tuple(Device(name, "gpu", dispatch_s=1e-6, process="python") for name in ("gpu0", "gpu1"))
    machine = Topology(gpus, (), (Link("gpu0", "gpu1", 1e9, 1e-6),))
    graph = OpGraph((*chain, Op("beside", "op", 1.5e-3)), edges)
    rows = {row.method: row.makespan_s for row in compare(graph, machine, time_limit_s=1.0).rows}
    least_s = min(makespan_s for makespan_s in rows.values() if makespan_s is not None)
    assert rows["ilp"] == pytest.approx(least_s, rel=1e-9)
    assert least_s == pytest.approx(0.100001, rel=1e-3)


# On cores of one interpreter the op that starts first keeps the other from starting: 1 s if it is the long one on d1,
# which then ends last, at 3 s; 2 s the other way round, and the step takes 5 s.
def test_who_comes_first_at_a_shared_interpreter_is_searched() -> None:
    cores = tuple(
        Device(name, "core", dispatch_s=each_s, process="host", asynchronous=False)
        for name, each_s in (("d0", 2.0), ("d1", 1.0))
    )
    graph = OpGraph((Op("short", "op", 2.0), Op("long", "op", 3.0)), ())
    machine = Topology(cores, (), (Link("d0", "d1", 1.0, 1.0),))
    assert place(graph, machine, Options(contention="none"), work_s=0.3).plan.makespan_s == 3
