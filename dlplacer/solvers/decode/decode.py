"""Schedules from a placement and an order, or from an order and a device rule."""

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from dlplacer.solvers.decode.device_rules import insert_all, new_desk, work_on
from dlplacer.solvers.decode.kernel import (
    BYTES,
    DEVICE,
    MEMBERS,
    NEVER,
    START,
    InstanceArrays,
    Solution,
    filled,
    run_all,
    tables_of,
    transfers,
)
from dlplacer.solvers.decode.machine_code import is_fast, run
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, sequence, with_transfers
from dlplacer.solvers.instance.time_limit import count_work


def compact(instance: Instance, device: Sequence[int], start: Sequence[int]) -> Schedule:
    """The schedule in which every op starts as early as the placement and the order of `start` allow.

    If these starts obey eq. 10 and 12, the schedule ends no later. A zero-time sink inside another op moves to the
    end of that op; this delays nothing, because no op reads the sink.
    """
    return in_sequence(instance, device, sequence(instance, device, start))


def in_sequence(instance: Instance, device: Sequence[int], ops: Sequence[int]) -> Schedule:
    """The schedule of ops in turn: each starts once its device is free and its inputs, sent in link gaps, are there."""
    if instance.traffic is None:
        return _by_delays(instance, device, ops)
    fast = is_fast(instance.op_count * instance.device_count)
    solution, makespan = sent_in_turn(instance, device, ops, fast)
    start, sent = solution.ops[:, START].tolist(), transfers(instance, solution)
    if not sent:
        return Schedule(tuple(device), tuple(start), makespan)
    # Kernels take a route's ticks as linear in the bytes, so a transfer may take one tick too long there.
    return with_transfers(instance, instance.traffic, device, start, sent)


def sent_in_turn(instance: Instance, device: Sequence[int], ops: Sequence[int], fast: bool) -> tuple[Solution, int]:
    """The tables after the run of a placement and an order, in machine code if `fast`, and the run's makespan."""
    working = np.array([op for op in ops if op not in instance.sources], np.int64)

    def build(solution: Solution) -> int:
        return run(run_all, fast, tables_of(instance), solution, NEVER)

    return filled(instance, np.array(device, np.int64), working, build)


def _by_delays(instance: Instance, device: Sequence[int], ops: Sequence[int]) -> Schedule:
    """The schedule without traffic, computed ten times faster than by the kernel."""
    start, end, free = [0] * instance.op_count, [0] * instance.op_count, [0] * instance.device_count
    for op in ops:
        here = device[op]
        arrivals = (end[source] + delay[device[source]][here] for source, delay in instance.predecessors[op])
        start[op] = max(free[here], *arrivals, 0)
        end[op] = free[here] = start[op] + instance.duration[op][here]
    return Schedule(tuple(device), tuple(start), max(end))


_OP_S = 1e-5
"""Seconds of work per op."""


def decode(
    instance: Instance,
    order: Sequence[int],
    placement: Sequence[int] | None = None,
    works_on: bool = False,
    fast: bool | None = None,
) -> Schedule | None:
    """The schedule of an order and a device rule; None if an op fits on none of its allowed devices.

    A block takes all its memory when its first op is placed (eq. 13), so colocated ops cannot be locked out later.
    Zero-time sources may start at 0 on any device, so they go as near as possible to their first reader. With
    `works_on` no device idles while an op could run on it; otherwise each op goes where it ends first. `placement` is
    [block] → device, or -1 if the rule decides. By default machine code is used if loading it pays off.
    """
    arrays = tables_of(instance)
    if placement is not None:
        arrays = _placed(instance, arrays, placement)
    count_work(_OP_S * instance.op_count)
    fast = is_fast(instance.op_count * instance.device_count) if fast is None else fast

    def build(solution: Solution) -> int:
        if works_on:
            desk = new_desk(arrays, np.array(order, np.int64))
            return run(work_on, fast, arrays, solution, desk)
        booked = np.zeros((instance.device_count, len(order) + 1, 3), np.int64)
        rows, placed = np.zeros(instance.device_count, np.int64), np.zeros(len(arrays.units), np.int64)
        return run(insert_all, fast, arrays, solution, placed, booked, rows)

    ops = np.array([op for op in order if op not in instance.sources], np.int64)
    nowhere = np.zeros(instance.op_count, np.int64)
    solution, makespan = filled(instance, nowhere, ops, build)
    if makespan == NEVER:
        return None
    if not works_on and arrays.holds.size:
        # If inputs are sent in this order, an op's inputs never wait for the inputs of an op that starts later.
        device, start = solution.ops[:, DEVICE].tolist(), solution.ops[:, START].tolist()
        again = sent_in_turn(instance, device, sequence(instance, device, start), fast)
        solution, makespan = min((solution, makespan), again, key=itemgetter(1))
    device, start = solution.ops[:, DEVICE].tolist(), solution.ops[:, START].tolist()
    return Schedule(tuple(device), tuple(start), makespan, tuple(transfers(instance, solution)))


def _placed(instance: Instance, arrays: InstanceArrays, placement: Sequence[int]) -> InstanceArrays:
    """The same tables with every placed unit allowed only on its device, where its memory is already taken."""
    allowed, units, capacity = arrays.allowed.copy(), arrays.units.copy(), arrays.capacity.copy()
    for unit, first in enumerate(arrays.lists[arrays.units[:, MEMBERS]].tolist()):
        here = placement[instance.block[first]]
        if here >= 0:
            allowed[unit], allowed[unit, here] = 0, 1
            capacity[here] -= units[unit, BYTES]
            units[unit, BYTES] = 0
    return arrays._replace(allowed=allowed, units=units, capacity=capacity)
