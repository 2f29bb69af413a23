"""Ops that run one after another whatever the placement, where memory is short: the path as the only load.

What is left is an assignment: each op takes its time where it is, each change of device the delay of what crosses, and
footprints fit.
"""

from itertools import pairwise

from ortools.sat.python import cp_model

from dlplacer.problem.problem import Problem
from dlplacer.problem.transfers import TransferRequest
from dlplacer.solvers.assignment.model import AssignmentModel
from dlplacer.solvers.ilp.variables import Variables
from dlplacer.solvers.ilp.working_room import leave_working_room
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.schedule import Schedule

_MOST_CROSSINGS = 50_000
"""Ops × pairs of devices up to which the model is built. A guess."""


class PathLoads:
    """The terms of a path's length, which is the load of all devices together.

    A crossing is paid by its reader, as only then it is linear in who travels where. Arcs beside the path count where
    no route joins some devices.
    """

    load_count = 1

    def __init__(self, instance: Instance, path: list[int]) -> None:
        self.load_of = (0,) * instance.device_count
        nothing = ((0,) * instance.device_count,) * instance.device_count
        behind, kinds = dict(pairwise(path)), dict[tuple[tuple[int, ...], ...], int]()
        requests = list[TransferRequest]()
        for op, arcs in enumerate(instance.successors):
            for target, delay in arcs:
                apart = tuple(tuple(ticks if ticks >= FAR else 0 for ticks in row) for row in delay)
                paid = tuple(map(tuple, delay)) if behind.get(op) == target else apart
                if paid != nothing:
                    kind = kinds.setdefault(paid, len(kinds))
                    requests.append(TransferRequest("", op, kind, (target,), (target,)))
        self.requests, self._ticks = tuple(requests), tuple(kinds)

    @property
    def kind_count(self) -> int:
        """Number of different tables of delays."""
        return len(self._ticks)

    def paid(self, kind: int, source: int, target: int) -> tuple[int, int]:
        """Ticks that sender and receiver pay for a crossing."""
        return 0, self._ticks[kind][source][target]

    def on_links(self, *_: int) -> list[tuple[int, int]]:
        """Nothing, as transfers wait for no others."""
        return []


def serial_path(instance: Instance) -> list[int]:
    """A path through all ops that take time; empty if there is none, or too long a one."""
    depth, before = [0] * instance.op_count, [-1] * instance.op_count
    for op in instance.order:
        depth[op] += instance.longest[op] > 0
        for target, _ in instance.successors[op]:
            if depth[op] > depth[target]:
                depth[target], before[target] = depth[op], op
    working = sum(ticks > 0 for ticks in instance.longest)
    if max(depth, default=0) < working or working * instance.device_count**2 > _MOST_CROSSINGS:
        return []
    op = depth.index(working) if working else -1
    path = []
    while op >= 0:
        path.append(op)
        op = before[op]
    return path[::-1]


def build_path_model(
    problem: Problem, instance: Instance, path: list[int], start_from: Schedule
) -> tuple[cp_model.CpModel, Variables]:
    """The model of all placements under which a path of `serial_path` is no longer than a schedule, its hint.

    A relaxation: nothing waits but for what is before it on the path, links carry everything at once, and of memory
    over time it knows what an op needs while it runs. Starts are places in a sequence.
    """
    owner = AssignmentModel(instance, PathLoads(instance, path), 0, start_from.makespan)
    owner.hint([start_from.device[ops[0]] for ops in instance.members], start_from.makespan)
    if problem.options.memory == "live":
        leave_working_room(owner.model, problem, [owner.place[block] for block in instance.block[: problem.op_count]])
    position = {op: number for number, op in enumerate(instance.order)}
    start = [owner.model.new_constant(position[op]) for op in range(instance.op_count)]
    return owner.model, Variables(owner.place, tuple(start), owner.period)
