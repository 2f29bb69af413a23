"""A problem on some devices is what building it anew gives."""

from random import Random

from solvers.random_problems import random_everything

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Topology
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.restriction import on_devices


def _in_seconds(problem: Problem) -> tuple[object, ...]:
    tick_s = problem.tick_s

    def seconds(rows: tuple[tuple[int | None, ...], ...]) -> list[list[object]]:
        return [[None if ticks is None else ticks * tick_s for ticks in row] for row in rows]

    delays = [seconds(table) for table in problem.delay]
    return seconds(problem.duration), delays, problem.footprint_bytes, problem.capacity_bytes, problem.topology


def _drawn(seed: int) -> Problem:
    return build_problem(*random_everything(seed))


def test_on_some_devices_it_is_the_problem_of_the_smaller_machine() -> None:
    missing = detours = 0
    for seed in range(30):
        problem, random = _drawn(seed), Random(seed)
        devices = sorted(random.sample(range(problem.device_count), random.randint(1, problem.device_count)))
        part = on_devices(problem, devices)
        kept = tuple(problem.topology.devices[device] for device in devices)
        names = {device.id for device in kept} | {router.id for router in problem.topology.routers}
        links = tuple(link for link in problem.topology.links if {link.source, link.target} <= names)
        try:
            anew = build_problem(problem.graph, Topology(kept, problem.topology.routers, links), problem.options)
        except InputError:
            assert part is None, seed
            missing += 1
            continue
        if part is None:
            assert problem.options.routing == "shortest", seed
            detours += 1
            continue
        assert part.tick_s == problem.tick_s
        assert (part.exact, anew.exact) == (True, True)
        assert _in_seconds(part) == _in_seconds(anew), seed
    assert 0 < missing < 60
    assert 0 < detours < 30
