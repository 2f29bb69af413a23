"""Under ``memory: live`` what cannot fit is told with its numbers, and what waits or relays can make fit is planned."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from solvers.brute_force_options import optimum_under
from solvers.helpers import make_graph, make_machine
from solvers.random_problems import random_step

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.place import place
from dlplacer.planning.result import Result
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.feasibility import require_feasible, working_set
from dlplacer.solvers.ilp.assignment_model import WORKING, find_placement

LIVE = Options(contention="none")


def _place(graph: OpGraph, memory: int, count: int = 1, options: Options = LIVE) -> Result:
    return place(graph, make_machine(count, memory), options, workers=1)


def _chain() -> OpGraph:
    # a 0–1, b 1–2, c 2–3; every output of 4 bytes lives until its reader ends: 8 at most, 12 in all.
    times = {"a": 1.0, "b": 1.0, "c": 1.0}
    return make_graph(times, [("a", "b", 4), ("b", "c", 4)], output_bytes=dict.fromkeys("abc", 4))


def test_what_is_not_alive_together_need_not_fit_together() -> None:
    result = _place(_chain(), 8)
    assert (result.status, result.plan.makespan_s) == ("optimal", 3)
    assert result.plan.memory["d0"].peak_bytes == 8
    with pytest.raises(InfeasibleError, match="12 B"):
        _place(_chain(), 8, options=replace(LIVE, memory="sum"))


def test_an_op_that_does_not_fit_while_it_runs_is_named_with_its_numbers() -> None:
    words = r"op 'b' needs 8 B while it runs: .* largest device 'd0' has 7 B; use a larger topology, a smaller batch"
    with pytest.raises(InfeasibleError, match=words):
        _place(_chain(), 7)


@pytest.mark.parametrize("seed", range(8))
def test_room_while_an_op_runs_is_looked_for_on_every_device(seed: int) -> None:
    random = Random(seed)
    names = "abcdef"
    edges = [(one, other, random.randint(1, 9)) for one, other in pairwise(names)]
    sizes = {name: random.randint(0, 9) for name in names}
    graph = make_graph(dict.fromkeys(names, 1.0), edges, output_bytes=sizes, workspace_bytes=sizes)
    # Where an op takes no time it needs nothing beside its weights.
    times = [{kind: float(random.randint(0, 1)) for kind in ("big", "small")} for _ in graph.ops]
    graph = replace(graph, ops=tuple(replace(op, time_s=row) for op, row in zip(graph.ops, times, strict=True)))
    rooms = {kind: random.randint(8, 30) for kind in ("big", "small")}
    devices = tuple(Device(f"{kind}{n}", kind, rooms[kind] + n) for kind in ("small", "big") for n in range(2))
    links = tuple(Link(one.id, other.id, 1.0) for one, other in pairwise(devices))
    problem = build_problem(graph, Topology(devices, links=links), LIVE)
    fits = [
        any(working_set(problem, op, device) <= (problem.capacity_bytes[device] or 0) for device in range(4))
        for op in range(problem.op_count)
    ]
    with nullcontext() if all(fits) else pytest.raises(InfeasibleError, match="while it runs"):
        require_feasible(problem)


@pytest.mark.parametrize("contention", ["link", "none"])
@pytest.mark.parametrize("count", [1, 4])
def test_a_tensor_goes_around_relays_that_have_no_room_for_it(contention: str, count: int) -> None:
    # Over any of the relays 100 bytes take 2 s, on the link 100; but the relays have 50 bytes each.
    relays = [f"relay{number}" for number in range(count)]
    rooms = {"a": 500, "b": 500, **dict.fromkeys(relays, 50)}
    links = [Link(end, relay, 100) for relay in relays for end in "ab"]
    topology = Topology(
        tuple(Device(name, memory_bytes=rooms[name]) for name in rooms), (), (Link("a", "b", 1), *links)
    )
    graph = make_graph(
        {"p": 1.0, "q": 1.0}, [("p", "q", 100)], output_bytes={"p": 100}, devices={"p": ("a",), "q": ("b",)}
    )
    result = place(graph, topology, Options(contention=contention), workers=1)
    assert (result.status, result.plan.makespan_s) == ("optimal", 102)
    cut = replace(topology, links=tuple(links))
    with pytest.raises(InfeasibleError, match="no schedule fits in memory"):
        place(graph, cut, Options(contention=contention), workers=1)


def test_only_what_has_no_plan_has_no_placement() -> None:
    # Room for working sets is necessary: where the model of placements finds none, the naive model finds no plan.
    none = refused = 0
    for seed in range(300):
        graph, topology, options = random_step(seed)
        if options.memory == "sum":
            continue
        try:
            problem = build_problem(graph, topology, options)
        except InputError:
            continue
        decided, placement = find_placement(problem, 10.0)
        assert decided
        if placement is None:
            none += 1
            refused += find_placement(problem, 10.0, without=(WORKING,))[1] is not None
            assert optimum_under(graph, topology, options) is None, seed
    assert none > 2
    assert refused > 0
