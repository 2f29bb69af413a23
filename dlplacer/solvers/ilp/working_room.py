"""Room for what an op reads and writes while it runs (``memory: live``): rows on the placement, whatever the times."""

from collections.abc import Mapping, Sequence

from ortools.sat.python import cp_model

from dlplacer.problem.live_memory import input_bytes
from dlplacer.problem.problem import Problem
from dlplacer.solvers.ilp.variables import Literal
from dlplacer.solvers.instance.time_limit import ask_time

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
