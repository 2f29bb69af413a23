"""The objective: minimal step time."""

from ortools.sat.python import cp_model

from dlplacer.solvers.ilp.variables import Variables


def minimize_makespan(model: cp_model.CpModel, variables: Variables) -> None:
    """Minimise the tick at which the last op ends."""
    model.minimize(variables.makespan)
