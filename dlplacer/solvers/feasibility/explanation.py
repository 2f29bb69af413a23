"""Why a problem without a plan has none: each reason named with its numbers and a way out."""

from collections.abc import Sequence
from dataclasses import replace

from dlplacer.core.errors import InfeasibleError
from dlplacer.core.units import format_bytes
from dlplacer.problem.problem import Problem
from dlplacer.solvers.feasibility.reasons import (
    bytes_text,
    capacities_text,
    demands_by_type,
    groups_text,
    largest_working_set,
    op_text,
)
from dlplacer.solvers.feasibility.room_search import missed_by

_SECONDS = 2.0
"""For each family of constraints that is left out: time that a user waits for an explanation. A guess."""


def require_placement(problem: Problem, seconds: float) -> list[int] | None:
    """[op] → device of a placement that all rules but time allow; None if none was found in time.

    Raises
    ------
    InfeasibleError
        If none exists.
    """
    from dlplacer.solvers.ilp.assignment import find_placement

    decided, placement = find_placement(problem, seconds)
    if decided and placement is None:
        raise explain_infeasible(problem)
    return placement


def explain_infeasible(problem: Problem) -> InfeasibleError:
    """The error for a problem that the ILP proved infeasible: which family of constraints is to blame.

    One family after another is left out of the pure placement problem; those without which a placement exists are
    named.
    """
    from dlplacer.solvers.ilp.assignment import FAMILIES, WORKING, find_placement

    if problem.options.memory == "live" and find_placement(problem, _SECONDS, without=(WORKING,))[1] is not None:
        return explain_overflow(problem)
    blamed = [family for family in FAMILIES if find_placement(problem, _SECONDS, without=(family,))[1] is not None]
    ops = f"{problem.op_count} ops with {format_bytes(sum(problem.footprint_bytes))} in all"
    largest = max(range(problem.op_count), key=lambda op: problem.footprint_bytes[op])
    sizes = f"the largest op {op_text(problem, largest)} needs {format_bytes(problem.footprint_bytes[largest])}"
    devices = f"devices have {capacities_text(problem, range(problem.device_count))}"
    reasons = {
        "memory": f"no placement of {ops} fits: {sizes}, the {devices}{_binding(problem, blamed)}; use a larger "
        "topology or split the largest ops",
        "pins": "every placement breaks the 'devices' that some op may use; allow more devices",
        "colocation": f"every placement tears a colocation group apart: {groups_text(problem)}; make the groups "
        "smaller",
        "routes": "every placement separates two ops that must talk by devices that no route joins; add a link",
    }
    if not blamed:
        return InfeasibleError(
            f"no plan can exist for {ops}: memory, pins, groups and missing links exclude each other ({sizes}, the "
            f"{devices}); relax two of them"
        )
    return InfeasibleError("; or: ".join(reasons[family] for family in blamed))


def _binding(problem: Problem, blamed: Sequence[str]) -> str:
    """The device type whose memory is too small even if all others' were unlimited; empty where there is one type."""
    from dlplacer.solvers.ilp.assignment import find_placement

    types = [device.type for device in problem.topology.devices]
    if "memory" not in blamed or len(set(types)) == 1:
        return ""
    short = []
    for chosen in dict.fromkeys(types):
        rooms = zip(types, problem.capacity_bytes, strict=True)
        roomy = replace(problem, capacity_bytes=tuple(room if name == chosen else None for name, room in rooms))
        if find_placement(roomy, _SECONDS) == (True, None):
            short.append(repr(chosen))
    if short:
        return f"; the memory of type {' and of type '.join(short)} is too small for what must run there"
    return "; no type is short alone, but all of them together"


def explain_overflow(problem: Problem) -> InfeasibleError:
    """The error for a problem that has placements, but no schedule that keeps the memory at all times."""
    op, device, size = largest_working_set(problem)
    capacity_bytes = problem.capacity_bytes[device] or 0
    return InfeasibleError(
        f"no schedule keeps the memory at all times: weights, gradients and state take "
        f"{format_bytes(sum(problem.resident_bytes))} in all, op {op_text(problem, op)} needs at least "
        f"{bytes_text(size, capacity_bytes)} while it runs, and devices have "
        f"{capacities_text(problem, range(problem.device_count))}; use a larger topology or a smaller batch"
    )


def shortage(problem: Problem) -> str | None:
    """The resource nearest to being short where no plan was found: bytes needed, bytes there, and the devices.

    None where memory cannot bind, as everything fits on any device.
    """
    live = problem.options.memory == "live"
    passing = sum(problem.output_bytes) + sum(problem.workspace_bytes) if live else 0
    everything = sum(problem.footprint_bytes) + passing
    if all(size is None or size >= everything for size in problem.capacity_bytes):
        return None
    if nearest := missed_by(problem):
        here, excess = nearest
        room, place = problem.capacity_bytes[here] or 0, problem.topology.devices[here]
        return (
            f"the order that came nearest needs {bytes_text(room + excess, room)} on device {place.id!r} of type "
            f"{place.type!r}, which has {bytes_text(room, room + excess)}"
        )
    parts = []
    fullest = max(demands_by_type(problem), key=lambda demand: demand[1] / max(1, demand[2]), default=None)
    if fullest is not None:
        name, size, room = fullest
        kept = "weights, gradients and state" if live else "footprints"
        parts.append(f"{kept} take {bytes_text(size, room)} of the {bytes_text(room, size)} that {name} have in all")
    op, device, size = largest_working_set(problem)
    room = problem.capacity_bytes[device] or 0
    if passing and room:
        place = problem.topology.devices[device]
        parts.append(
            f"op {op_text(problem, op)} needs {bytes_text(size, room)} while it runs, and device {place.id!r} of type "
            f"{place.type!r} has {bytes_text(room, size)}"
        )
    return "; ".join(parts) or None
