"""The variables of the model: placement P, start times T, and the makespan.

Colocated ops share the literals of their block. Routes C have no variables: `dlplacer.problem.routes` solves eq. 8 and
9 ahead, and what is left of eq. 11 is a table of delays per pair of devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from dlplacer.problem.route_table import TimedRoute
from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.instance.instance import Instance

Literal = cp_model.LiteralT
Linear = cp_model.LinearExpr
Pairs = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class OptionalTransfer:
    """A route that a request may take between two devices: whether it does, and when each segment of it starts."""

    request: int
    source: int
    target: int
    route: TimedRoute
    used: Literal
    start: tuple[cp_model.IntVar, ...]


@dataclass(frozen=True)
class Variables:
    """The variables of an instance.

    Attributes
    ----------
    place
        [block] → device → literal, true if the block is there: P(k, n).
    start
        [op] → its start tick T(k); the constant 0 for sources of zero time.
    makespan
        The objective.
    far
        (block, block, pairs of devices) → literal that is true if the blocks are on one of these pairs; it may also be
        true elsewhere, which only lengthens a delay. Filled by the constraints.
    used
        (device, blocks) → literal that is true if one of the blocks is there. Filled by the constraints.
    away
        (device, blocks, block) → literal that is true if one of the blocks is there and the last one is not.
    optional_transfers
        The routes of all transfer requests, where transfers are part of the model. Filled by the constraints.
    relaxed_transfers
        In place of these, where routes are many: what every route of a request holds.
    left_out
        Transfer requests that may take other routes too: no bound may rest on the model then. Filled by the
        constraints.
    """

    place: tuple[dict[int, Literal], ...]
    start: tuple[cp_model.IntVar, ...]
    makespan: cp_model.IntVar
    far: dict[tuple[int, int, Pairs], cp_model.IntVar] = field(default_factory=dict)
    used: dict[tuple[int, tuple[int, ...]], cp_model.IntVar] = field(default_factory=dict)
    away: dict[tuple[int, tuple[int, ...], int], cp_model.IntVar] = field(default_factory=dict)
    optional_transfers: list[OptionalTransfer] = field(default_factory=list)
    relaxed_transfers: list[OptionalTransfer] = field(default_factory=list)
    left_out: set[int] = field(default_factory=set)


def create_variables(model: cp_model.CpModel, instance: Instance, bounds: Bounds, upper: int) -> Variables:
    """Variables whose domains leave out what cannot be in a schedule of at most `upper` ticks."""
    place = place_blocks(model, instance)
    start: list[cp_model.IntVar] = []
    for op in range(instance.op_count):
        latest = upper - bounds.tail[op] - instance.shortest[op]
        fixed = op in instance.sources
        start.append(model.new_constant(0) if fixed else model.new_int_var(bounds.head[op], latest, f"start{op}"))
    return Variables(place, tuple(start), model.new_int_var(bounds.makespan, upper, "makespan"))


def place_blocks(model: cp_model.CpModel, instance: Instance) -> tuple[dict[int, Literal], ...]:
    """[block] → device → literal, true if the block is there: P(k, n)."""
    return tuple(_place(model, instance.allowed[ops[0]], block) for block, ops in enumerate(instance.members))


def duration(instance: Instance, variables: Variables, op: int) -> Linear | int:
    """Δ(k) as an expression in the placement."""
    if instance.shortest[op] == instance.longest[op]:
        return instance.shortest[op]
    literals = variables.place[instance.block[op]]
    return cp_model.LinearExpr.weighted_sum(
        list(literals.values()), [instance.duration[op][device] for device in literals]
    )


def hint(
    model: cp_model.CpModel, instance: Instance, variables: Variables, device: Sequence[int], start: Sequence[int]
) -> None:
    """Start the search at a schedule: every variable gets its value there, auxiliary ones too."""
    placement = [device[ops[0]] for ops in instance.members]
    for block, literals in enumerate(variables.place):
        for there, literal in literals.items():
            if isinstance(literal, cp_model.IntVar) and len(literals) > 1:
                model.add_hint(literal, placement[block] == there)
    for op, variable in enumerate(variables.start):
        if op not in instance.sources:
            model.add_hint(variable, start[op])
    # Auxiliary literals too: CP-SAT gives up a hint that it cannot complete within few conflicts.
    for (source, target, pairs), literal in variables.far.items():
        model.add_hint(literal, (placement[source], placement[target]) in pairs)
    for (there, blocks), literal in variables.used.items():
        model.add_hint(literal, any(placement[block] == there for block in blocks))
    for (there, blocks, other), literal in variables.away.items():
        used = any(placement[block] == there for block in blocks)
        model.add_hint(literal, used and placement[other] != there)
    end = max(begin + instance.duration[op][device[op]] for op, begin in enumerate(start))
    model.add_hint(variables.makespan, end)


def _place(model: cp_model.CpModel, devices: Sequence[int], block: int) -> dict[int, Literal]:
    if len(devices) == 1:
        return {devices[0]: model.new_constant(1)}
    # One literal and its negation: half the variables, and no exactly-one row.
    if len(devices) == 2:
        literal = model.new_bool_var(f"place{block}")
        return {devices[0]: literal, devices[1]: literal.negated()}
    return {device: model.new_bool_var(f"place{block}_{device}") for device in devices}
