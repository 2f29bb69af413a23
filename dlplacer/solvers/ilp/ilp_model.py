"""The whole ILP of an instance."""

from ortools.sat.python import cp_model

from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.ilp import constraints
from dlplacer.solvers.ilp import transfer_constraints as transfers
from dlplacer.solvers.ilp.constraints import Variables, create_variables, hint
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.symmetry import interchangeable, relabelled


def build_model(
    instance: Instance,
    bounds: Bounds,
    upper: int,
    start_from: Schedule | None = None,
    with_transfers: bool = False,
    symmetric: bool = True,
    every_route: bool = False,
) -> tuple[cp_model.CpModel, Variables]:
    """The model of all schedules of at most `upper` ticks, hinted with a schedule if one is given.

    Parameters
    ----------
    with_transfers
        Whether the traffic of the instance, if it has any, is part of the model; else links carry everything at once,
        which is a relaxation.
    symmetric
        Whether devices that can be swapped may be renamed, which leaves fewer solutions.
    every_route
        Whether to list all routes that transfers may take, which is for small problems.
    """
    model = cp_model.CpModel()
    variables = create_variables(model, instance, bounds, upper)
    add_constraints(model, instance, variables, bounds, upper)
    if symmetric:
        constraints.break_symmetry(model, instance, variables)
    if instance.traffic is not None and with_transfers:
        transfers.add_transfers(model, instance, instance.traffic, variables, bounds, upper, every_route)
        transfers.one_transfer_at_a_time(model, variables)
    constraints.minimize_makespan(model, variables)
    if start_from is not None:
        _hint_relabelled(model, instance, variables, start_from)
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


def _hint_relabelled(model: cp_model.CpModel, instance: Instance, variables: Variables, schedule: Schedule) -> None:
    """Hint with swappable devices renamed, since a hint that breaks the symmetry breaking is of no use."""
    # On 500 ops a hint that broke the symmetry breaking led to no solution at all within 40 s, without a word.
    placement = [schedule.device[ops[0]] for ops in instance.members]
    name = relabelled(placement, interchangeable(instance), constraints.symmetry_blocks(instance))
    hint(model, instance, variables, [name[device] for device in schedule.device], schedule.start)
    if instance.traffic is not None and variables.optional_transfers:
        names = {device: name.get(device, device) for device in range(instance.device_count)}
        transfers.hint_transfers(model, instance.traffic, variables, schedule, names)
