"""A machine is not worse than its parts, an option not worse than a stricter one."""

from random import Random

from solvers.random_problems import random_everything

from dlplacer.check import violations
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.restriction import on_devices, stricter_options, under
from dlplacer.solvers.feasibility.simple_reasons import may_have_plan
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.memory_admission import admission
from dlplacer.solvers.instance.outcome import Outcome, ProblemSchedule
from dlplacer.solvers.instance.restricted import Restricted
from dlplacer.solvers.instance.schedule import Schedule, in_sequence


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


def _restrictions(problem: Problem, random: Random) -> list[Restricted]:
    devices = tuple(sorted(random.sample(range(problem.device_count), random.randint(1, problem.device_count - 1))))
    part = on_devices(problem, devices)
    everything = tuple(range(problem.device_count))
    strict = [Restricted(under(problem, options), everything, problem) for options in stricter_options(problem)]
    return strict if part is None or not may_have_plan(part) else [Restricted(part, devices, problem), *strict]


def test_schedules_of_a_restricted_problem_are_plans_of_the_whole_and_no_longer() -> None:
    parts, options = 0, 0
    for seed in range(150):
        problem, random = build_problem(*random_everything(seed)), Random(seed)
        instance = build_instance(problem)
        for restricted in _restrictions(problem, random) if may_have_plan(problem) else ():
            schedule = _drawn_schedule(restricted.problem, random)
            if schedule is None:
                continue
            found = [one for one in restricted.schedules(schedule) if admission(problem, instance)(one)]
            same = restricted.problem.options == problem.options
            # Copies count under `live` alone, so what `sum` allows may not fit as it was.
            if restricted.problem.options.memory == problem.options.memory:
                assert min(one.makespan for one in found) <= schedule.makespan, seed
            for one in found:
                held = ProblemSchedule.of(problem, instance, one)
                assert not violations(assemble(problem, Outcome(None, 0), held, "ilp", 0.0, {})), seed
            parts, options = parts + same, options + (not same)
    assert parts > 50
    assert options > 100
