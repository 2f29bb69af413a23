"""Annealing of placements along a path."""

from itertools import product

import pytest
from solvers.helpers import one_worker
from solvers.serial_chains import MIB, tight_chain

from dlplacer.core.options import Options
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.placement_loads import serial_path
from dlplacer.solvers.instance.schedule import Incumbent, Schedule, keeps_blocks_and_memory
from dlplacer.solvers.instance.time_limit import counting_work
from dlplacer.solvers.local_search.placement_annealing import anneal_serial


@pytest.mark.parametrize("seed", range(6))
def test_it_finds_the_optimum_of_short_chains(seed: int) -> None:
    instance = build_instance(build_problem(*tight_chain(seed, 7, 3, 1.3), Options(memory="sum")))
    every = [in_sequence(instance, row, instance.order) for row in product(range(3), repeat=7)]
    kept = [schedule for schedule in every if keeps_blocks_and_memory(instance, schedule)]
    incumbent = Incumbent(one_worker())
    assert incumbent.offer(max(kept, key=lambda schedule: schedule.makespan))
    with counting_work():
        anneal_serial(instance, incumbent, serial_path(instance), 1.0)
    assert incumbent.best is not None
    assert keeps_blocks_and_memory(instance, incumbent.best)
    assert incumbent.best.makespan == min(schedule.makespan for schedule in kept)


@pytest.mark.parametrize("room", [5 * MIB, 40 * MIB])
def test_where_placements_are_refused_more_room_is_left(room: int) -> None:
    instance = build_instance(build_problem(*tight_chain(2, 40, 3, 1.5), Options(memory="sum")))

    def leaves_room(schedule: Schedule) -> bool:
        used = [0] * instance.device_count
        for block, ops in enumerate(instance.members):
            used[schedule.device[ops[0]]] += instance.footprint[block]
        return all(size + room <= (capacity or 0) for size, capacity in zip(used, instance.capacity, strict=True))

    incumbent = Incumbent(one_worker(), leaves_room)
    first = next(
        schedule
        for cut in product(range(41), repeat=2)
        if cut[0] <= cut[1]
        for schedule in [in_sequence(instance, [sum(op >= at for at in cut) for op in range(40)], instance.order)]
        if leaves_room(schedule)
    )
    assert incumbent.offer(first)
    anneal_serial(instance, incumbent, serial_path(instance), 2.0)
    assert incumbent.best is not None
    assert leaves_room(incumbent.best)
    assert incumbent.best.makespan < first.makespan
