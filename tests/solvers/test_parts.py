"""Which parts of a machine are searched, and that a machine is not worse than its parts."""

from random import Random

from solvers.random_problems import random_everything

import dlplacer as dp
from dlplacer.check import violations
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.restriction import on_devices
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.feasibility import may_have_plan
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.memory_admission import admission
from dlplacer.solvers.instance.schedule import Outcome, ProblemSchedule, Schedule
from dlplacer.solvers.machine_parts import Restricted, SubsetParams, device_subsets

# Two islands of three devices with fast links inside and a slow one between.
LINKS = [("a0", "a1"), ("a1", "a2"), ("a0", "a2"), ("b0", "b1"), ("b1", "b2"), ("b0", "b2")]
ISLANDS = dp.Topology(
    tuple(dp.Device(name, "T") for name in ("a0", "b0", "a1", "b1", "a2", "b2")),
    (),
    (*(dp.Link(*pair, 100.0) for pair in LINKS), dp.Link("a0", "b0", 1.0)),
)
CHAIN = dp.OpGraph(
    tuple(dp.Op(name, "op", {"T": 1.0, "slow": 3.0}) for name in "abc"), (dp.Edge("a", "b", 100), dp.Edge("b", "c", 50))
)


def subsets(topology: dp.Topology, graph: dp.OpGraph = CHAIN, most: int = 6) -> list[set[str]]:
    problem = build_problem(graph, topology, dp.Options())
    found = device_subsets(problem, build_instance(problem), SubsetParams(most=most))
    return [{topology.devices[device].id for device in devices} for devices in found]


def joined(*types: str, rate: float = 10.0) -> dp.Topology:
    devices = tuple(dp.Device(f"d{number}", name) for number, name in enumerate(types))
    links = tuple(dp.Link(a.id, b.id, rate) for b in devices for a in devices if a.id < b.id)
    return dp.Topology(devices, (), links)


def test_an_island_and_its_pair_are_parts_and_its_twin_is_not_another() -> None:
    found = subsets(ISLANDS)
    assert found[0] in ({"a0", "a1"}, {"a0", "a2"}, {"b0", "b1"}, {"b0", "b2"}, {"a1", "a2"}, {"b1", "b2"})
    assert sum(part in ({"a0", "a1", "a2"}, {"b0", "b1", "b2"}) for part in found) == 1
    assert all(1 < len(part) < 6 for part in found)


def test_every_type_is_a_part_and_the_fastest_devices_come_first() -> None:
    found = subsets(joined("slow", "T", "slow", "T"))
    assert {"d1", "d3"} in found
    assert {"d0", "d2"} in found
    assert all({"d1", "d3"} <= part for part in found if len(part) == 3)


def test_a_device_that_an_op_cannot_do_without_is_in_every_part() -> None:
    graph = dp.OpGraph((*CHAIN.ops, dp.Op("read", "op", {"T": 1.0, "slow": 3.0}, devices=("d0",))), CHAIN.edges)
    found = subsets(joined("slow", *["T"] * 5), graph)
    assert found
    assert all("d0" in part and len(part) < 6 for part in found)
    assert {len(part) for part in found} >= {3, 5}


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
