"""Models of the placement alone: is there any that all rules but time allow; and the best one of ops in a row.

Every placement can be scheduled, one op after another. So without memory over time a problem is infeasible exactly if
no placement exists. Where ops run one after another whatever the placement, and memory is short, an assignment is all
that is left to decide: each op takes its time where it is, each change of device the delay of the tensor that crosses,
and footprints fit. With a literal for every pair of devices of an arc the linear relaxation is that of paths through
(op, device), which is close; that of a model with start times, whose delays hang on clauses, is not.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ortools.sat.python import cp_model

from dlplacer.problem.live_memory import input_bytes
from dlplacer.problem.problem import Problem
from dlplacer.solvers.ilp import constraints
from dlplacer.solvers.ilp.constraints import Literal, Variables, duration, place_blocks
from dlplacer.solvers.ilp.solver_thread import limit, solve_in_thread
from dlplacer.solvers.instance.instance import FAR, Instance, build_instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import OutOfTimeError, ask_time, ends_when, now, time_is_up

_MOST_WORKING = 20_000
"""Ops × devices up to which working sets are looked at: a row for each of them."""


def leave_working_room(model: cp_model.CpModel, problem: Problem, place: Sequence[Mapping[int, Literal]]) -> None:
    """While an op of some time runs, its device holds its block and all others there, its inputs, output and workspace.

    An input counts as the original where its producer lies on the device, and as the copies sent where it does not.
    """
    if len(place) * problem.device_count > _MOST_WORKING:
        return
    held = {}
    for device, capacity in enumerate(problem.capacity_bytes):
        if capacity is not None:
            held[device] = model.new_int_var(0, capacity, "")
            here = [(problem.footprint_bytes[op], row[device]) for op, row in enumerate(place) if device in row]
            model.add(held[device] == sum(size * there for size, there in here))
    for op, row in enumerate(place):
        ask_time()
        inputs = input_bytes(problem, op)
        for device, literal in row.items():
            capacity = problem.capacity_bytes[device]
            if capacity is None or not problem.duration[op][device]:
                continue
            sent = sum(copies for _, copies in inputs.values())
            working = problem.output_bytes[op] + problem.workspace_bytes[op] + sent
            together: list[cp_model.LinearExpr] = []
            for source, (original, copies) in inputs.items():
                if device in place[source] and original != copies:
                    both = model.new_bool_var("")
                    model.add_bool_or([both, ~literal, ~place[source][device]])
                    model.add_implication(both, literal)
                    model.add_implication(both, place[source][device])
                    together.append((original - copies) * both)
            if working:
                model.add(cp_model.LinearExpr.sum([held[device], working * literal, *together]) <= capacity)


WORKING = "working"
"""Under ``memory: live``, part of the memory family: room for what an op reads and writes while it runs."""

FAMILIES = ("memory", "pins", "colocation", "routes")
"""Rules that can forbid a placement: eq. 13, allowed devices, groups, and eq. 8 (devices that no route joins)."""


def find_placement(problem: Problem, seconds: float, without: Container[str] = ()) -> tuple[bool, list[int] | None]:
    """Return whether the question was decided in time, and [op] → device of a placement that breaks no family, if any.

    Where time is up it is undecided; `OutOfTimeError` is not raised, as a proof that is explained is not to be lost.

    Parameters
    ----------
    without
        Families to ignore, or `WORKING`.
    """
    until = now() + seconds
    try:
        with ends_when(lambda: now() > until):
            model, place = _model(problem, without)
    except OutOfTimeError:
        return False, None
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    left_s = max(0.0, until - now())
    limit(solver, left_s)
    solver.parameters.presolve_inclusion_work_limit = 0
    solver.parameters.catch_sigint_signal = False
    status = solve_in_thread(solver, model, left_s, time_is_up)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return status == cp_model.INFEASIBLE, None
    return True, [next(d for d, literal in row.items() if solver.boolean_value(literal)) for row in place]


def _model(problem: Problem, without: Container[str]) -> tuple[cp_model.CpModel, list[Mapping[int, Literal]]]:
    instance, model = _instance_without(problem, without), cp_model.CpModel()
    variables = Variables(constraints.place_blocks(model, instance), (), model.new_constant(0))
    constraints.place_every_op(model, instance, variables)
    if "routes" not in without:
        constraints.join_communicating_ops(model, instance, variables)
    place: list[Mapping[int, Literal]] = [variables.place[block] for block in instance.block[: problem.op_count]]
    if "memory" not in without:
        constraints.fit_into_memory(model, instance, variables)
        if WORKING not in without and problem.options.memory == "live":
            leave_working_room(model, problem, place)
    return model, place


def _instance_without(problem: Problem, without: Container[str]) -> Instance:
    """The problem's instance, where groups may be torn apart or every device is allowed if these rules are left out."""
    instance = build_instance(problem)
    if "colocation" in without:
        more = instance.op_count - problem.op_count
        instance = replace(
            instance,
            block=tuple(range(instance.op_count)),
            members=tuple((op,) for op in range(instance.op_count)),
            footprint=(*problem.footprint_bytes, *(0,) * more),
            allowed=(*problem.allowed, *instance.allowed[problem.op_count :]),
        )
    if "pins" in without:
        instance = replace(instance, allowed=(tuple(range(problem.device_count)),) * instance.op_count)
    return instance


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
