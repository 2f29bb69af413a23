"""The model of ops that run one after another, against all placements."""

from collections.abc import Callable
from itertools import pairwise, product

import pytest
from solvers.helpers import one_worker
from solvers.serial_chains import tight_chain

from dlplacer.core.options import Options
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.ilp.assignment_model import AssignmentModel
from dlplacer.solvers.ilp.constraints import Literal
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, search
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.placement_loads import path_length, serial_path
from dlplacer.solvers.instance.schedule import Incumbent, Schedule, keeps_blocks_and_memory


def _schedules(instance: Instance, problem: Problem) -> list[Schedule]:
    placements = product(range(instance.device_count), repeat=problem.op_count)
    found = (in_sequence(instance, placement, instance.order) for placement in placements)
    return [schedule for schedule in found if keeps_blocks_and_memory(instance, schedule)]


def _path_ticks(instance: Instance, path: list[int], schedule: Schedule) -> int:
    device = schedule.device
    ticks = sum(instance.duration[op][device[op]] for op in path)
    for op, behind in pairwise(path):
        delay = next(delay for target, delay in instance.successors[op] if target == behind)
        ticks += delay[device[op]][device[behind]]
    return ticks


@pytest.mark.parametrize("skips", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_its_optimum_is_the_shortest_path_of_all_placements(seed: int, skips: int) -> None:
    problem = build_problem(*tight_chain(seed, 6, 3, 1.3, skips), Options(memory="sum"))
    instance = build_instance(problem)
    every, path = _schedules(instance, problem), serial_path(instance)
    assert len(path) == 6
    incumbent = Incumbent(one_worker())
    worst = max(every, key=lambda schedule: schedule.makespan)
    assert incumbent.offer(worst)
    model = AssignmentModel(problem, instance, path_length(instance, path), 0, worst.makespan)
    model.hint([worst.device[ops[0]] for ops in instance.members], worst.makespan)

    def read(is_true: Callable[[Literal], bool], _value: object) -> list[Schedule]:
        place = model.read(is_true)
        return [in_sequence(instance, [place[block] for block in instance.block], instance.order)]

    assert search(model.model, read, incumbent, 20.0, relaxes_well=True) is SearchEnd.OPTIMAL
    assert incumbent.bound == min(_path_ticks(instance, path, schedule) for schedule in every)
    least = min(schedule.makespan for schedule in every)
    assert incumbent.bound <= least
    if not skips:
        assert incumbent.best is not None
        assert incumbent.best.makespan == incumbent.bound == least
