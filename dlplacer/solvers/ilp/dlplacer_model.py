"""DLPlacer's ILP as in Pal et al. 2019: eq. 7–13 row by row, with placement, routes and start times as variables.

It is the reference for the other methods, which decompose the problem and fix routes in advance. It contains none of
their bounds, device orders or cuts. All rows are linear; a binary orders each pair of ops on a device, as in eq. 12,
and the horizon is the big M. With contended links or memory over time, it is a relaxation.
"""

import math
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from ortools.sat.python import cp_model

from dlplacer.core.errors import InputError
from dlplacer.files.text import write_bytes
from dlplacer.problem.problem import Problem
from dlplacer.problem.routes import link_delay_s
from dlplacer.problem.ticks import exact, ticks
from dlplacer.solvers.ilp.constraints import Literal, Variables, duration
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.time_limit import ask_time

_OPEN = 2**62
"""A bound of a row with at least this absolute value is infinite."""

Uses = Mapping[tuple[str, str], cp_model.IntVar]
"""Link direction → C(e, l): 1 if edge e is sent over link l."""


def build_dlplacer_model(problem: Problem) -> tuple[cp_model.CpModel, Variables]:
    """The model of a problem with the delays of eq. 11, and its variables: P(k, n) of each block, T(k) and makespan.

    Raises InputError if the problem has other delays, because a sum over links would then bound nothing.
    """
    if problem.options.delay != "store-and-forward":
        raise InputError(
            "the paper's program has delays that are sums over links (eq. 11); use the options of the paper, or "
            f"delay=store-and-forward in place of {problem.options.delay}"
        )
    instance, model = build_instance(problem), cp_model.CpModel()
    place: tuple[dict[int, Literal], ...] = tuple(
        {n: model.new_bool_var(f"P_{block}_{n}") for n in instance.allowed[ops[0]]}
        for block, ops in enumerate(instance.members)
    )
    start = tuple(model.new_int_var(0, problem.horizon, f"T_{op}") for op in range(instance.op_count))
    variables = Variables(place, start, model.new_int_var(0, problem.horizon, "makespan"))
    for literals in place:
        model.add(sum(literals.values()) == 1)  # eq. 7
    _send(model, problem, instance, variables)
    _run_in_turn(model, problem, instance, variables)
    for n, capacity in enumerate(instance.capacity):
        if capacity is not None:  # eq. 13
            here = [size * row[n] for size, row in zip(instance.footprint, place, strict=True) if n in row]
            model.add(cp_model.LinearExpr.sum(here) <= capacity)
    for op, begin in enumerate(start):
        model.add(variables.makespan >= begin + duration(instance, variables, op))
    model.minimize(variables.makespan)
    return model, variables


def _send(model: cp_model.CpModel, problem: Problem, instance: Instance, variables: Variables) -> None:
    """Eq. 8–11: an edge between devices takes a path of links, and its reader waits for the sum of their delays."""
    links, sent = problem.topology.link_between, set[tuple[int, int]]()
    for number, arc in enumerate(problem.arcs):
        ask_time()
        uses = {hop: model.new_bool_var(f"C_{number}_{'_'.join(hop)}") for hop in links}
        produced, read = (variables.place[instance.block[op]] for op in (arc.source, arc.target))
        _keep_flow(model, problem, (produced, read), uses)
        size_bytes = problem.sizes_bytes[arc.size]
        delay = [ticks(link_delay_s(link, size_bytes, exact), problem.tick_s) for link in links.values()]
        end = variables.start[arc.source] + duration(instance, variables, arc.source)
        travel = cp_model.LinearExpr.weighted_sum(list(uses.values()), delay)
        model.add(variables.start[arc.target] >= end + travel)
        sent.add((arc.source, arc.target))
    for target, arcs in enumerate(instance.predecessors):
        for source in (source for source, _ in arcs if (source, target) not in sent):
            # The barrier between forward and backward pass, which the paper lacks.
            model.add(variables.start[target] >= variables.start[source] + duration(instance, variables, source))


def _keep_flow(
    model: cp_model.CpModel, problem: Problem, ends: tuple[Mapping[int, Literal], Mapping[int, Literal]], uses: Uses
) -> None:
    """Eq. 8 and 9: links out of a node exceed links in by one at the producer, and fall short by one at the reader."""
    produced, read = ends
    nodes = {node for hop in uses for node in hop} | set(problem.topology.device_index)
    for node in sorted(nodes):
        out = [literal for hop, literal in uses.items() if hop[0] == node]
        into = [literal for hop, literal in uses.items() if hop[1] == node]
        n = problem.topology.device_index.get(node)
        ends_here = [] if n is None else [read.get(n, 0), produced.get(n, 0)]
        signs = [1] * len(out) + [-1] * len(into) + [1, -1][: len(ends_here)]
        model.add(cp_model.LinearExpr.weighted_sum([*out, *into, *ends_here], signs) == 0)


def _run_in_turn(model: cp_model.CpModel, problem: Problem, instance: Instance, variables: Variables) -> None:
    """Eq. 12: of two ops on one device that no edge joins, one ends before the other begins."""
    joined = {(source, target) for target, arcs in enumerate(instance.predecessors) for source, _ in arcs}
    for x, y in combinations(range(instance.op_count), 2):
        ask_time()
        both = set(instance.allowed[x]) & set(instance.allowed[y])
        if (x, y) in joined or (y, x) in joined or not both:
            continue
        is_first = model.new_bool_var(f"before_{x}_{y}")
        for n in both:
            here = [variables.place[instance.block[op]][n] for op in (x, y)]
            for one, other, in_turn in ((x, y, is_first), (y, x, 1 - is_first)):
                end = variables.start[one] + instance.duration[one][n]
                free = 3 - cp_model.LinearExpr.sum([*here, in_turn])
                model.add(variables.start[other] >= end - problem.horizon * free)


def export_model(problem: Problem, path: Path) -> None:
    """Write the model of a problem for other solvers: ``.mps``, or CP-SAT's own ``.pb.txt``.

    Raises InputError if the file name has another ending, or if `build_dlplacer_model` raises it.
    """
    texts: dict[str, Callable[[cp_model.CpModel], str]] = {".mps": _mps, ".pb.txt": lambda model: str(model.proto)}
    text = next((each for ending, each in texts.items() if path.name.endswith(ending)), None)
    if text is None:
        raise InputError(f"export {str(path)!r}: end the name in .mps or .pb.txt")
    write_bytes(path, text(build_dlplacer_model(problem)[0]).encode())


def _mps(model: cp_model.CpModel) -> str:
    from ortools.linear_solver.python import model_builder

    # Open sides of rows hold the least or greatest 64-bit number.
    new_model: Any = model_builder.Model
    linear = new_model()
    columns = [linear.new_int_var(*variable.domain, variable.name) for variable in model.proto.variables]

    def summed(terms: Any) -> model_builder.LinearExpr:
        return model_builder.LinearExpr.weighted_sum([columns[number] for number in terms.vars], list(terms.coeffs))

    for row in model.proto.constraints:
        least, most = (side if abs(side) < _OPEN else math.copysign(math.inf, side) for side in list(row.linear.domain))
        linear.add_linear_constraint(summed(row.linear), least, most)
    linear.minimize(summed(model.proto.objective))
    return str(linear.export_to_mps_string())
