"""The model of a window of a schedule."""

from collections.abc import Sequence

from ortools.sat.python import cp_model

from dlplacer.solvers.decomposition.windows import Window
from dlplacer.solvers.ilp.constraints import minimize_makespan
from dlplacer.solvers.ilp.ilp_model import add_constraints
from dlplacer.solvers.ilp.variables import Linear, Literal, Variables, create_variables, duration


def build_window_model(window: Window, upper: int) -> tuple[cp_model.CpModel, Variables]:
    """The model of a window of a schedule: the same rules, between what comes before and what comes after."""
    model, bounds = cp_model.CpModel(), window.bounds
    variables = create_variables(model, window.instance, bounds, upper)
    add_constraints(model, window.instance, variables, bounds, upper)
    _join_surroundings(model, window, variables)
    minimize_makespan(model, variables)
    return model, variables


def _join_surroundings(model: cp_model.CpModel, window: Window, variables: Variables) -> None:
    """A window's ops start after the release, and leave the tail, of the device that they are on."""
    for op, (release, tail) in enumerate(zip(window.release, window.tail, strict=True)):
        literals = variables.place[window.instance.block[op]]
        start = variables.start[op]
        if op not in window.instance.sources:
            model.add(start >= _chosen(literals, release))
        model.add(variables.makespan >= start + duration(window.instance, variables, op) + _chosen(literals, tail))


def _chosen(literals: dict[int, Literal], values: Sequence[int]) -> Linear | int:
    """The value of the device that is chosen."""
    least = min(values[device] for device in literals)
    rest = [(literal, values[device] - least) for device, literal in literals.items() if values[device] > least]
    if not rest:
        return least
    return least + cp_model.LinearExpr.weighted_sum([literal for literal, _ in rest], [value for _, value in rest])
