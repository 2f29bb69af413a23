"""The whole ILP of an instance."""

from ortools.sat.python import cp_model

from dlplacer.solvers.bounds import Bounds
from dlplacer.solvers.ilp import constraints
from dlplacer.solvers.ilp.objective import minimize_makespan
from dlplacer.solvers.ilp.variables import Variables, create_variables, hint
from dlplacer.solvers.instance import Instance
from dlplacer.solvers.symmetry import interchangeable, relabelled
from dlplacer.solvers.timetable import Timetable
from dlplacer.solvers.windows import Window


def build_model(
    instance: Instance, bounds: Bounds, upper: int, start_from: Timetable | None = None
) -> tuple[cp_model.CpModel, Variables]:
    """The model of all schedules of at most `upper` ticks, hinted with a timetable if one is given."""
    model = cp_model.CpModel()
    variables = create_variables(model, instance, bounds, upper)
    add_constraints(model, instance, variables, bounds, upper)
    constraints.break_symmetry(model, instance, variables)
    minimize_makespan(model, variables)
    if start_from is not None:
        _hint_relabelled(model, instance, variables, start_from)
    return model, variables


def build_window_model(window: Window, upper: int) -> tuple[cp_model.CpModel, Variables]:
    """The model of a window of a timetable: the same rules, between what comes before and what comes after."""
    model, bounds = cp_model.CpModel(), window.bounds
    variables = create_variables(model, window.instance, bounds, upper)
    add_constraints(model, window.instance, variables, bounds, upper)
    constraints.join_surroundings(model, window, variables)
    minimize_makespan(model, variables)
    return model, variables


def add_constraints(
    model: cp_model.CpModel, instance: Instance, variables: Variables, bounds: Bounds, upper: int
) -> None:
    """Every rule of the problem, and rows that follow from them."""
    constraints.place_every_op(model, instance, variables)
    constraints.join_communicating_ops(model, instance, variables)
    constraints.respect_precedence(model, instance, variables, bounds, upper)
    constraints.run_one_op_at_a_time(model, instance, variables)
    constraints.fit_into_memory(model, instance, variables)
    constraints.finish_before_makespan(model, instance, variables, bounds)
    constraints.bound_loads(model, instance, variables, bounds)


def _hint_relabelled(model: cp_model.CpModel, instance: Instance, variables: Variables, timetable: Timetable) -> None:
    """Hint with swappable devices renamed, since a hint that breaks the symmetry breaking is of no use."""
    placement = [timetable.device[ops[0]] for ops in instance.members]
    name = relabelled(placement, interchangeable(instance), constraints.symmetry_blocks(instance))
    hint(model, instance, variables, [name[device] for device in timetable.device], timetable.start)
