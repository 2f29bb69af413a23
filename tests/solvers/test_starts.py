"""The heuristics come first, all of them, and none keeps another from its turn."""

from dataclasses import replace
from itertools import pairwise

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import star
from solvers.helpers import found_by, make_machine, one_worker

import dlplacer as dp
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission, overflow
from dlplacer.solvers.instance.schedule import Incumbent, Schedule
from dlplacer.solvers.methods import HEURISTICS, start_of
from dlplacer.solvers.starts import StartSearch

_FOREVER_S = 1e6


def _begun(problem: Problem, seconds: float = _FOREVER_S) -> tuple[Instance, Incumbent]:
    instance = build_instance(problem)
    return instance, Incumbent(one_worker(seconds), admission(problem, instance))


def _tight(seed: int, room: float) -> Problem:
    """Memory over time is short: outputs live beside the weights, which leave hardly any room."""
    graph = FAMILIES["layered"](40, seed, 1.0)
    ops = tuple(replace(op, weight_bytes=10, output_bytes=3) for op in graph.ops)
    graph = replace(graph, ops=ops, edges=tuple(replace(edge, bytes=3) for edge in graph.edges))
    machine, share = star(3), round(room * sum(op.weight_bytes for op in ops) / 3)
    machine = replace(machine, devices=tuple(replace(device, memory_bytes=share) for device in machine.devices))
    return build_problem(graph, machine, dp.Options())


def test_no_heuristic_is_better_than_the_starts_where_memory_is_short() -> None:
    short = 0
    for seed in range(2):
        for room in (1.38, 1.42, 1.5):
            problem = _tight(seed, room)
            instance, incumbent = _begun(problem)
            search = StartSearch(problem, instance, incumbent, list(map(start_of, HEURISTICS)))
            search.run()
            search.go_on()
            own = {name: found_by(problem, name) for name in HEURISTICS}
            found = {name: schedule.makespan for name, schedule in own.items() if schedule is not None}
            short += incumbent.refused and bool(found)
            if found:
                assert incumbent.best is not None
                assert incumbent.best.makespan <= min(found.values()), (seed, room)
                assert not any(overflow(problem, instance, incumbent.best))
    assert short >= 1


def test_a_heuristic_that_finds_no_room_gets_a_placement_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Bin packing alone: 6 + 5 + 4 and 5 + 5 + 5 fill two devices of 15, which worst fit decreasing misses.
    sizes = (6, 5, 5, 5, 5, 4)
    ops = tuple(dp.Op(name, "t", 1.0, weight_bytes=size) for name, size in zip("abcdef", sizes, strict=True))
    graph = dp.OpGraph(ops, tuple(dp.Edge(a, b, 8) for a, b in pairwise("abcdef")))
    problem = build_problem(graph, make_machine(2, memory=15), dp.Options(memory="sum"))
    instance, incumbent = _begun(problem)
    asked: list[Instance] = []

    def lost(problem: Problem, surrogate: Instance) -> Schedule | None:
        asked.append(surrogate)
        devices = [allowed[0] for allowed in surrogate.allowed]
        single = all(len(allowed) == 1 for allowed in surrogate.allowed)
        return in_sequence(surrogate, devices, surrogate.order) if single else None

    StartSearch(problem, instance, incumbent, [lost]).run()
    assert len(asked) == 2
    assert incumbent.best is not None
    used = [sum(size for size, device in zip(sizes, incumbent.best.device, strict=True) if device == d) for d in (0, 1)]
    assert max(used) == 15
