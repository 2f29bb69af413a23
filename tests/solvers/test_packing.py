"""A plan is found wherever the colocation groups can be packed into the memory, however tight it is."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest

import dlplacer as dp

_COUNT = 20


def _packs(sizes: Sequence[int], rooms: list[int]) -> bool:
    """Exact bin packing by depth-first search, the largest first."""
    if not sizes:
        return True
    for device in range(len(rooms)):
        if rooms[device] >= sizes[0] and rooms[device] not in rooms[:device]:
            rooms[device] -= sizes[0]
            found = _packs(sizes[1:], rooms)
            rooms[device] += sizes[0]
            if found:
                return True
    return False


def _tight(seed: int) -> tuple[dp.OpGraph, dp.Topology, list[int], list[int]]:
    """Groups of one to three ops whose sizes nearly fill unequal devices, with the packing that made some of them."""
    random = Random(seed)
    count = random.randint(2, 4)
    rooms = [random.randint(30, 60) for _ in range(count)]
    groups: list[int] = []
    for room in rooms:
        left = room
        while left > 6:
            groups.append(min(left, random.randint(5, 20)))
            left -= groups[-1]
    if random.random() < 0.5:
        # One more byte often leaves nothing that fits.
        groups[random.randrange(len(groups))] += 1
    random.shuffle(groups)
    ops, chain = [], []
    for number, size in enumerate(groups):
        parts = random.randint(1, 3)
        for part in range(parts):
            share = size // parts + (size % parts if part == 0 else 0)
            times = {"fast": random.uniform(1, 3), "slow": random.uniform(4, 9)}
            ops.append(dp.Op(f"g{number}.{part}", "t", times, weight_bytes=share, colocate=f"g{number}"))
    random.shuffle(ops)
    for a, b in pairwise(ops):
        if random.random() < 0.7:
            chain.append(dp.Edge(a.id, b.id, random.choice([1, 4])))
    devices = tuple(dp.Device(f"d{n}", random.choice(["fast", "slow"]), room) for n, room in enumerate(rooms))
    links = tuple(dp.Link(a.id, b.id, random.uniform(1, 4)) for b in devices for a in devices if a.id < b.id)
    return dp.OpGraph(tuple(ops), tuple(chain)), dp.Topology(devices, (), links), sorted(groups, reverse=True), rooms


@pytest.mark.parametrize("options", [dp.Options(memory="sum"), dp.Options.paper()], ids=["contention", "paper"])
def test_a_plan_is_found_exactly_where_a_packing_exists(options: dp.Options) -> None:
    found = {True: 0, False: 0}
    for seed in range(_COUNT):
        graph, machine, groups, rooms = _tight(seed)
        packs = _packs(groups, rooms)
        found[packs] += 1
        if packs:
            # The gap ends the search as soon as there is a plan.
            assert dp.place(graph, machine, options, time_limit_s=60, gap=0.999, workers=1).plan.ops, seed
        else:
            with pytest.raises(dp.InfeasibleError):
                dp.place(graph, machine, options, time_limit_s=60, gap=0.999, workers=1)
    assert min(found.values()) >= 3
