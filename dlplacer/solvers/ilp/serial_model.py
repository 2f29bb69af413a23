"""Ops that run one after another whatever the placement, where memory is short: the ILP without times.

What is left is an assignment: each op takes its time where it is, each change of device the delay of what crosses, and
footprints fit. With a literal for every pair of devices of an arc the linear relaxation is that of paths through (op,
device), which is close; that of a model with start times, whose delays hang on clauses, is not.
"""

from collections.abc import Mapping
from itertools import pairwise

from ortools.sat.python import cp_model

from dlplacer.problem.problem import Problem
from dlplacer.solvers.ilp import constraints
from dlplacer.solvers.ilp.assignment import leave_working_room
from dlplacer.solvers.ilp.constraints import Literal, Variables, duration, place_blocks
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.schedule import Schedule

_MOST_CROSSINGS = 50_000
"""Ops × pairs of devices up to which the model is built. A guess."""


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


def build_serial_model(
    problem: Problem, instance: Instance, path: list[int], start_from: Schedule
) -> tuple[cp_model.CpModel, Variables]:
    """The model of all placements under which a path of `serial_path` is no longer than a schedule, its hint.

    A relaxation: nothing waits but for what is before it on the path, links carry everything at once, and of memory
    over time it knows what an op needs while it runs. Starts are places in a sequence.
    """
    model = cp_model.CpModel()
    place = place_blocks(model, instance)
    position = {op: number for number, op in enumerate(instance.order)}
    start = [model.new_constant(position[op]) for op in range(instance.op_count)]
    variables = Variables(place, tuple(start), model.new_int_var(0, start_from.makespan, "makespan"))
    constraints.place_every_op(model, instance, variables)
    constraints.join_communicating_ops(model, instance, variables)
    constraints.fit_into_memory(model, instance, variables)
    if problem.options.memory == "live":
        leave_working_room(model, problem, [place[block] for block in instance.block[: problem.op_count]])
    known = [start_from.device[ops[0]] for ops in instance.members]
    for block, literals in enumerate(place):
        for device, literal in literals.items():
            if isinstance(literal, cp_model.IntVar) and len(literals) > 1:
                model.add_hint(literal, known[block] == device)
    length = [duration(instance, variables, op) for op in path]
    for op, behind in pairwise(path):
        ends = instance.block[op], instance.block[behind]
        if ends[0] == ends[1]:
            continue
        delay = next(delay for target, delay in instance.successors[op] if target == behind)
        for (a, b), crosses in _crossings(model, place[ends[0]], place[ends[1]]).items():
            model.add_hint(crosses, (known[ends[0]], known[ends[1]]) == (a, b))
            if 0 < delay[a][b] < FAR:
                length.append(delay[a][b] * crosses)
    model.add(variables.makespan == cp_model.LinearExpr.sum(length))
    constraints.minimize_makespan(model, variables)
    return model, variables


def _crossings(
    model: cp_model.CpModel, sources: Mapping[int, Literal], targets: Mapping[int, Literal]
) -> dict[tuple[int, int], cp_model.IntVar]:
    """Pair of devices → whether an arc leads from the one to the other."""
    found = {(a, b): model.new_bool_var("") for a in sources for b in targets}
    for a, literal in sources.items():
        model.add(sum(found[a, b] for b in targets) == literal)
    for b, literal in targets.items():
        model.add(sum(found[a, b] for a in sources) == literal)
    return found
