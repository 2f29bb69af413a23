"""The step time with an op on another device, which explains its placement; and a plan's changes under pins."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from threading import Event
from typing import Any

from dlplacer.core.abilities import Shown
from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import DlplacerError, InternalError
from dlplacer.core.plan import Plan
from dlplacer.planning.constrain import constrained
from dlplacer.planning.warm_start import followed
from dlplacer.planning.what_if.what_would_help import bound_of, require_consistent, solved_again
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.instance.instance import build_instance, interchangeable

_BOUND_S = 0.3
_LOOK_SHARE = 0.3
"""Of the time for one device, what is left to bounds at most; a solve gets the rest."""


@dataclass(frozen=True)
class Elsewhere:
    """The step with an op on another device.

    Attributes
    ----------
    moved_alone_s
        Step time if it moves with its colocation group and all else stays, in the plan's order; None where the memory
        does not allow it.
    makespan_s, lower_bound_s
        The shortest step found with it there, all else free; and what no such step can beat.
    kept
        An op that is held where it is, since the devices are interchangeable: else all might change places.
    """

    op: str
    device: str
    moved_alone_s: float | None = None
    makespan_s: float | None = None
    lower_bound_s: float | None = None
    kept: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``elsewhere`` of ``dlplacer explain --json``."""
        return asdict(self)


@dataclass(frozen=True)
class PinnedPlan(Shown):
    """A plan's problem with pins, solved again.

    Attributes
    ----------
    moved
        Ops on other devices than in the plan that was given → device before and device after.
    """

    pins: Mapping[str, str]
    plan: Plan
    moved: Mapping[str, tuple[str, str]]

    def to_dict(self) -> dict[str, Any]:
        """The field ``pinned`` of ``dlplacer explain --json``."""
        return {
            "pins": dict(self.pins),
            "makespan_s": self.plan.makespan_s,
            "lower_bound_s": self.plan.lower_bound_s,
            "status": self.plan.status,
            "moved": {op: {"from": before, "to": after} for op, (before, after) in self.moved.items()},
        }


def pinned_plan(
    plan: Plan,
    pins: Sequence[tuple[str, str]],
    colocate: Sequence[str | Sequence[str]] = (),
    seconds: float = 10.0,
    *,
    workers: int | None = None,
    stop: Event | None = None,
) -> PinnedPlan:
    """The plan under pins: its problem solved again, with the plan as the warm start."""
    graph = constrained(plan.graph, plan.topology, pins, colocate)
    found = solved_again(plan, seconds, graph, workers=workers, stop=stop)
    moved = {
        op: (device, found.placement[op]) for op, device in plan.placement.items() if found.placement[op] != device
    }
    added = {op: device for op, device in graph.constraints.pins.items() if op not in plan.graph.constraints.pins}
    return PinnedPlan(added, found, moved)


def elsewhere(
    plan: Plan, op: str, seconds: float = 10.0, *, workers: int | None = None, stop: Event | None = None
) -> Iterator[Elsewhere]:
    """The step with an op on each of the other devices that may run it."""
    group = next((ops for ops in plan.graph.colocation_groups if op in ops), (op,))
    # Pins of the op and its group are what is asked about.
    held = plan.graph.constraints
    pins = {name: device for name, device in held.pins.items() if name not in group}
    free = replace(plan, graph=replace(plan.graph, constraints=Constraints(pins, held.colocate)))
    stop = stop or Event()
    others = [device.id for device in plan.topology.devices if device.id != plan.placement[op]]
    until = time.monotonic() + seconds
    for number, device in enumerate(others):
        share_s = max(0.0, until - time.monotonic()) / (len(others) - number)
        try:
            yield _on(free, op, group, device, share_s, workers, stop)
        except InternalError:
            raise
        except DlplacerError as error:
            yield Elsewhere(op, device, note=str(error))


def _on(
    plan: Plan, op: str, group: Sequence[str], device: str, seconds: float, workers: int | None, stop: Event
) -> Elsewhere:
    until = time.monotonic() + seconds
    alone_s, kept = _moved_alone_s(plan, group, device), _anchor(plan, op, group, device)
    pins = [(op, device), *([(kept, plan.placement[kept])] if kept else [])]
    graph = constrained(plan.graph, plan.topology, pins)
    bound_s = bound_of(build_problem(graph, plan.topology, plan.options), min(_BOUND_S, _LOOK_SHARE * seconds))
    steps = [] if alone_s is None else [alone_s]
    if (left_s := until - time.monotonic()) > 0 and not stop.is_set():
        found = solved_again(plan, left_s, graph, workers=workers, stop=stop)
        bound_s = max(bound_s, found.lower_bound_s)
        steps.append(found.makespan_s)
    best_s = min(steps, default=None)
    require_consistent(f"op {op!r} on {device!r}", bound_s, best_s)
    return Elsewhere(op, device, alone_s, best_s, bound_s, kept)


def _moved_alone_s(plan: Plan, group: Sequence[str], device: str) -> float | None:
    """Step time if a colocation group moves and all else stays, in the plan's order."""
    pins = {name: device if name in group else here for name, here in plan.placement.items()}
    graph = replace(plan.graph, constraints=Constraints(pins))
    try:
        found = followed(build_problem(graph, plan.topology, plan.options), plan)
    except DlplacerError:
        return None
    return None if found is None else found.makespan_s


def _anchor(plan: Plan, op: str, group: Sequence[str], device: str) -> str:
    """The longest other op beside it, to be held there where the two devices could just exchange all that they have."""
    problem = build_problem(plan.graph, plan.topology, plan.options)
    index = plan.topology.device_index
    pair = {index[device], index[plan.placement[op]]}
    if not any(pair <= set(members) for members in interchangeable(build_instance(problem))):
        return ""
    beside = [entry for entry in plan.ops if entry.device == plan.placement[op] and entry.op not in group]
    longest = max(beside, key=lambda entry: entry.end_s - entry.start_s, default=None)
    return "" if longest is None or longest.end_s == longest.start_s else longest.op
