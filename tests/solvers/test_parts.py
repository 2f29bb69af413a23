"""A machine is not worse than its parts."""

from random import Random

from solvers.random_problems import random_everything

from dlplacer.check import violations
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.restriction import on_devices
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.feasibility.reasons import may_have_plan
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.memory_admission import admission
from dlplacer.solvers.instance.outcome import Outcome, ProblemSchedule
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.parts import Restricted


def _drawn_schedule(problem: Problem, random: Random) -> Schedule | None:
    """A random placement in a random order that the rules allow; None if memory is short."""
    instance = build_instance(problem)
    blocks = [random.choice(instance.allowed[ops[0]]) for ops in instance.members]
    schedule = in_sequence(instance, [blocks[block] for block in instance.block], instance.order)
    sizes = [0] * instance.device_count
    for block, device in enumerate(blocks):
        sizes[device] += instance.footprint[block]
    fits = all(room is None or size <= room for size, room in zip(sizes, instance.capacity, strict=True))
    return schedule if fits and schedule.makespan < 2**40 and admission(problem, instance)(schedule) else None


def test_schedules_of_a_part_are_plans_of_the_whole_and_no_longer() -> None:
    tried = 0
    for seed in range(150):
        problem, random = build_problem(*random_everything(seed)), Random(seed)
        instance = build_instance(problem)
        count = random.randint(1, problem.device_count - 1)
        devices = tuple(sorted(random.sample(range(problem.device_count), count)))
        part = on_devices(problem, devices)
        if part is None or not may_have_plan(problem) or not may_have_plan(part):
            continue
        schedule = _drawn_schedule(part, random)
        if schedule is None:
            continue
        found = Restricted(part, devices, problem).of_the_whole(schedule)
        assert admission(problem, instance)(found), seed
        assert found.makespan <= schedule.makespan, seed
        held = ProblemSchedule.of(problem, instance, found)
        assert not violations(assemble(problem, Outcome(None, 0), held, "ilp", 0.0, {})), seed
        tried += 1
    assert tried > 50
