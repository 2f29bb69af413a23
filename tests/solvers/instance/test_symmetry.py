"""Which devices can change places, against the definition."""

from itertools import combinations
from random import Random

import pytest

import dlplacer as dp
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.instance.instance import Instance, build_instance, interchangeable


def _instance(random: Random) -> Instance:
    names = [f"d{number}" for number in range(random.randint(2, 5))]
    kinds = [random.choice(["gpu", "gpu", "cpu"]) for _ in names]
    devices = tuple(
        dp.Device(name, kind, memory_bytes=random.choice([100, 100, 200]))
        for name, kind in zip(names, kinds, strict=True)
    )
    rates = random.choice([[10.0], [10.0, 20.0]])
    links = tuple(dp.Link(a, b, random.choice(rates)) for a, b in combinations(names, 2) if random.random() < 0.9)
    ops = tuple(dp.Op(f"o{number}", "op", {"gpu": 1.0, "cpu": random.choice([1.0, 2.0])}) for number in range(3))
    edges = (dp.Edge("o0", "o1", random.choice([10, 30])), dp.Edge("o1", "o2", random.choice([10, 50])))
    assumed = dp.Options(contention=random.choice(["none", "link"]))
    return build_instance(build_problem(dp.OpGraph(ops, edges), dp.Topology(devices, (), links), assumed))


def _can_be_swapped(instance: Instance, a: int, b: int) -> bool:
    """The instance is the same when the two devices change places."""
    new = list(range(instance.device_count))
    new[a], new[b] = b, a
    delays = {delay for row in instance.successors for _, delay in row}
    rooms, parts = instance.capacity, instance.component
    return (
        rooms[a] == rooms[b]
        and parts[a] == parts[b]
        and all((a in allowed) == (b in allowed) for allowed in instance.allowed)
        and all(row[a] == row[b] for row in instance.duration)
        and all(
            delay[new[p]][new[q]] == delay[p][q] for delay in delays for p in range(len(new)) for q in range(len(new))
        )
        and (instance.traffic is None or instance.traffic.routes.swappable(a, b))
    )


@pytest.mark.parametrize("seed", range(8))
def test_classes_hold_the_devices_any_two_of_which_can_be_swapped(seed: int) -> None:
    instance = _instance(Random(seed))
    found = {pair for members in interchangeable(instance) for pair in combinations(members, 2)}
    pairs = combinations(range(instance.device_count), 2)
    assert found == {pair for pair in pairs if _can_be_swapped(instance, *pair)}
