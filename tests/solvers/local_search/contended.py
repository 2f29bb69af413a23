"""Random instances with contended links."""

from collections.abc import Iterator

from solvers.random_problems import random_everything

from dlplacer.core.errors import InfeasibleError
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.heuristics.list_rules import list_schedule
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.schedule import Schedule


def contended_instances(count: int = 120) -> Iterator[tuple[int, Instance, Schedule]]:
    """Contended instances with pins, groups, unequal devices, relays, half duplex and barriers, and schedules."""
    for seed in range(count):
        graph, topology, options = random_everything(seed)
        if options.contention != "link":
            continue
        try:
            instance = build_instance(build_problem(graph, topology, options))
        except InfeasibleError:
            continue
        joined = len(set(instance.component)) == 1
        start = list_schedule(instance, instance.order) if joined and all(instance.allowed) else None
        if start is not None and start.makespan:
            yield seed, instance, start
