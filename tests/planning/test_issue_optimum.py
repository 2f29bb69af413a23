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
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.compare import compare
from dlplacer.planning.place import place


@pytest.mark.parametrize("seed", range(6))
def test_the_default_method_is_near_the_optimum_and_claims_no_other(seed: int) -> None:
    graph, topology, options = random_step(seed, 5)
    hosted = with_hosts(topology, Random(seed))
    ahead = replace(hosted, devices=tuple(replace(device, asynchronous=True) for device in hosted.devices))
    optimum = naive_issue_optimum(graph, ahead, options)
    if optimum is None:
        with pytest.raises((InfeasibleError, NoPlanError)):
            place(graph, ahead, options)
        return
    plan = place(graph, ahead, options, time_limit_s=3.0, workers=1).plan
    assert plan.lower_bound_s <= optimum + 1e-9
    assert optimum - 1e-9 <= plan.makespan_s <= 1.3 * optimum


# Ten ops of 10 ms one after another and one of 1.5 ms beside them: a second device saves 1.5 %.
def test_the_default_method_keeps_what_gains_little() -> None:
    chain = tuple(Op(f"c{n}", "op", 10e-3) for n in range(10))
    edges = tuple(Edge(f"c{n}", f"c{n + 1}", 8) for n in range(9))
    gpus = tuple(Device(name, "gpu", dispatch_s=1e-6, process="python") for name in ("gpu0", "gpu1"))
    machine = Topology(gpus, (), (Link("gpu0", "gpu1", 1e9, 1e-6),))
    graph = OpGraph((*chain, Op("beside", "op", 1.5e-3)), edges)
    rows = {row.method: row.makespan_s for row in compare(graph, machine, time_limit_s=3.0).rows}
    least_s = min(makespan_s for makespan_s in rows.values() if makespan_s is not None)
    assert rows["ilp"] == pytest.approx(least_s, rel=1e-9)
    assert least_s == pytest.approx(0.100001, rel=1e-3)
