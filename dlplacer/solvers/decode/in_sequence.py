"""Schedules of a placement and an order: every op as early as its data and its device allow, in its turn."""

from collections.abc import Sequence

import numpy as np

from dlplacer.solvers.decode.arrays import Tables, tables_of
from dlplacer.solvers.decode.machine_code import is_fast, run
from dlplacer.solvers.decode.runs import run_from
from dlplacer.solvers.decode.solution import NEVER, TRIAL_START, Solution, filled, transfers
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, sequence, with_transfers
from dlplacer.solvers.instance.time_limit import ask_time


def compact(instance: Instance, device: Sequence[int], start: Sequence[int]) -> Schedule:
    """The schedule in which every op starts as early as this placement and the order of these starts allow.

    It obeys eq. 10 and 12 and ends no later, provided that the given starts do, where zero-time sinks may also lie
    inside another op: such a sink moves to the end of that op, which delays nothing as nothing reads it.
    """
    return in_sequence(instance, device, sequence(instance, device, start))


def in_sequence(instance: Instance, device: Sequence[int], ops: Sequence[int]) -> Schedule:
    """The schedule that starts every op, taken in this order, as early as its data and its device allow.

    Where there is traffic, an op's data are sent when its turn comes, into the first gap that the links have.
    """
    if instance.traffic is None:
        return _by_delays(instance, device, ops)
    tables = tables_of(instance)
    fast = is_fast(instance.op_count * instance.device_count, (run_from,))
    solution, makespan = sent_in_turn(tables, device, ops, fast)
    start, sent = solution.ops[:, TRIAL_START].tolist(), list(transfers(tables, solution))
    if not sent:
        return Schedule(tuple(device), tuple(start), makespan)
    # Kernels take the ticks of a route from a line, so a transfer may take a tick too long there.
    return with_transfers(instance, instance.traffic, device, start, sent)


def sent_in_turn(tables: Tables, device: Sequence[int], ops: Sequence[int], fast: bool) -> tuple[Solution, int]:
    """Tables with the trial of a placement and an order, in machine code if `fast`, and its makespan."""
    instance, arrays, _ = tables
    working = np.array([op for op in ops if op not in instance.sources], np.int64)

    def build(solution: Solution) -> int:
        return run(run_from, fast, arrays, solution, 0, NEVER)

    return filled(tables, np.array(device, np.int64), working, build)


def _by_delays(instance: Instance, device: Sequence[int], ops: Sequence[int]) -> Schedule:
    early, end, free = [0] * instance.op_count, [0] * instance.op_count, [0] * instance.device_count
    for op in ops:
        ask_time()
        here = device[op]
        begin = free[here]
        for source, delay in instance.predecessors[op]:
            arrival = end[source] + delay[device[source]][here]
            if arrival > begin:
                begin = arrival
        early[op] = begin
        end[op] = free[here] = begin + instance.duration[op][here]
    return Schedule(tuple(device), tuple(early), max(end))
