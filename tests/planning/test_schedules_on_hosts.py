"""Schedules of heuristics that know of no host, realised on machines with hosts: rounded up to what these can do."""

import time
from dataclasses import replace
from random import Random
from threading import Event

from check.reckoning import is_right
from problem.test_naive_step import a_step

from dlplacer.check import violations
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.assemble import in_seconds, plan_of
from dlplacer.problem.problem import build_problem
from dlplacer.problem.simulate import replay
from dlplacer.solvers.instance.outcome import Budget, Outcome
from dlplacer.solvers.methods import METHODS


def test_schedules_with_and_without_transfers_keep_the_rules_of_hosts() -> None:
    found = {True: 0, False: 0}
    for seed in range(40):
        problem, _, _ = a_step(seed)
        method = METHODS[Random(seed).choice(["heft", "etf", "list", "m-etf"])]
        schedule = method(problem, Budget(time.monotonic() + 30, 0.0, 0, 1, Event())).schedule
        if schedule is None:
            continue
        plan = plan_of(problem, *in_seconds(problem, schedule), Outcome(None, 0), "", 0.0, {})
        assert violations(plan) == (), seed
        assert is_right(plan), seed
        found[schedule.transfers is not None] += 1
    assert min(found.values()) > 10


# x ends at 1 s on d0 and is handed over to d1 once, until 1.5 s, though y and z there read it by an edge each: then w.
# It travels 2 s for each of them, one after the other, from 1.5 to 3.5 and to 5.5 s; d1, idle until then,
# takes it over meanwhile.
def test_a_tensor_is_handed_over_once_to_a_device_that_several_edges_lead_to() -> None:
    nodes = (("x", "d0"), ("w", "d0"), ("y", "d1"), ("z", "d1"))
    ops = tuple(Op(name, "test", 1.0, devices=(device,)) for name, device in nodes)
    graph = OpGraph(ops, tuple(Edge("x", reader, 20, tensor="t") for reader in "wyz"))
    cores = tuple(Device(f"d{i}", dispatch_s=0.5, asynchronous=False) for i in range(2))
    options = replace(Options.paper(), contention="link")
    problem = build_problem(graph, Topology(cores, (), (Link("d0", "d1", 10.0),)), options)
    schedule = METHODS["heft"](problem, Budget(time.monotonic() + 30, 0.0, 0, 1, Event())).schedule
    assert schedule is not None
    assert schedule.transfers is not None
    realised = in_seconds(problem, schedule)
    for ops_in_seconds, transfers in (realised, replay(problem, schedule.device, schedule.order)):
        start_s = {entry.op: entry.start_s for entry in ops_in_seconds}
        assert (start_s["x"], start_s["w"], min(start_s["y"], start_s["z"])) == (0.0, 1.5, 3.5)
        assert sorted(sent.start_s for sent in transfers) == [1.5, 3.5]
