"""Schedules by rules keep every rule of the problem, with contended links and without, and in machine code alike."""

from collections.abc import Iterator

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import cluster, limited, linked, mixed, ring, star, timed_on
from solvers.helpers import packed_blocks
from solvers.random_problems import random_everything, random_fork_join, random_problem, random_step

from dlplacer.check import violations
from dlplacer.core.errors import DlplacerError
from dlplacer.core.options import Options
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.decode.decode import decode
from dlplacer.solvers.instance.instance import FAR, build_instance
from dlplacer.solvers.instance.memory_admission import admission
from dlplacer.solvers.instance.schedule import Outcome, ProblemSchedule

MACHINES = {"star": star(4), "ring": ring(4), "cluster": cluster(8), "unequal": mixed(linked(4), "fast", "slow")}


def _drawn(seeds: int) -> Iterator[Problem]:
    """With pins, groups, ops of no time, unequal devices, relays, routers, broken machines and tight memory."""
    for seed in range(seeds):
        for graph, topology, options in (
            (*random_problem(seed), Options.paper()),
            (*random_fork_join(seed, 4, plain=False), Options()),
            random_everything(seed),
            random_step(seed),
        ):
            try:
                yield build_problem(graph, topology, options)
            except DlplacerError:
                continue


def _families() -> Iterator[Problem]:
    for family in ("layered", "stencil", "u_net"):
        for machine in MACHINES.values():
            graph = timed_on(FAMILIES[family](60, 1, 1.0), machine)
            yield build_problem(graph, machine, Options())
            yield build_problem(graph, limited(machine, graph, 1.3), Options.paper())


def _rules(problem: Problem) -> Iterator[tuple[list[int] | None, bool]]:
    packed = packed_blocks(problem)
    placements = [None] if packed is None else [None, packed, [d if b % 3 else -1 for b, d in enumerate(packed)]]
    for placement in placements:
        for works_on in (False, True):
            yield placement, works_on


@pytest.mark.parametrize("problems", [_drawn(60), _families()], ids=["drawn", "families"])
def test_every_schedule_is_a_plan_that_check_passes(problems: Iterator[Problem]) -> None:
    plans = 0
    for number, problem in enumerate(problems):
        instance = build_instance(problem)
        for rule in _rules(problem) if all(instance.allowed) else ():
            found = decode(instance, instance.order, *rule, fast=False)
            assert found == decode(instance, instance.order, *rule, fast=True), number
            if found is None or found.makespan >= FAR or not admission(problem, instance)(found):
                continue
            held = ProblemSchedule.of(problem, instance, found)
            assert not violations(assemble(problem, Outcome(None, 0), held, "list", 0.0, {})), (number, rule)
            plans += 1
    assert plans > 100
