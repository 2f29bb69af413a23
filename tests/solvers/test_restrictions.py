"""A machine is not worse than its parts, an option not worse than a stricter one."""

from dataclasses import replace
from functools import partial
from random import Random

from benchmarks.families import FAMILIES
from solvers.helpers import one_worker
from solvers.random_problems import random_everything

import dlplacer as dp
from dlplacer.check import violations
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.restriction import on_devices, stricter_options, under
from dlplacer.solvers.feasibility.simple_reasons import may_have_plan
from dlplacer.solvers.heuristics.construct import construct
from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.heuristics.start_method import StartMethod
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import admission
from dlplacer.solvers.instance.outcome import Outcome, ProblemSchedule
from dlplacer.solvers.instance.restricted import Restricted
from dlplacer.solvers.instance.schedule import Schedule, in_sequence
from dlplacer.solvers.methods import RULES
from dlplacer.solvers.restrictions import RestrictionSearch

_FOREVER_S = 1e6


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


def _begun(problem: Problem, rules: tuple[str, ...]) -> tuple[Incumbent, list[str]]:
    """What the heuristics find on all parts, from a first schedule on one device; and what was searched further."""
    instance = build_instance(problem)
    incumbent = Incumbent(one_worker(_FOREVER_S), admission(problem, instance))
    incumbent.offer(in_sequence(instance, [0] * instance.op_count, instance.order))
    searched: list[str] = []

    def search(part: Problem, its_instance: Instance, inner: Incumbent) -> None:
        searched.append(",".join(device.id for device in part.topology.devices))

    starts = [StartMethod(1.0, partial(_rule, name)) for name in rules]
    RestrictionSearch(problem, instance, incumbent, starts, search).run()
    return incumbent, searched


def _rule(name: str, problem: Problem, instance: Instance) -> Schedule | None:
    return construct(instance, RULES[name])


def _hosts(per_host: int) -> dp.Topology:
    """Two hosts of fast GPUs with a slow link between: spreading a stencil over it costs more than it brings."""
    names = [f"g{number}" for number in range(2 * per_host)]
    links = [dp.Link(name, f"h{number // per_host}", 8e9, 1e-5) for number, name in enumerate(names)]
    routers = (dp.Router("h0"), dp.Router("h1"))
    return dp.Topology(tuple(dp.Device(n, "fast") for n in names), routers, (*links, dp.Link("h0", "h1", 1e9, 5e-5)))


def test_the_paper_s_options_get_what_is_found_under_contention() -> None:
    graph = FAMILIES["layered"](100, 2, 3.0)
    problem = build_problem(graph, _hosts(2), dp.Options.paper())
    best = _begun(problem, ("list",))[0].best
    contended = under(problem, replace(problem.options, contention="link"))
    own = construct(build_instance(contended), list_schedule)
    assert best is not None
    assert own is not None
    assert best.makespan <= own.makespan
