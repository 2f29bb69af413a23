"""Why an op is where it is: what the step would take with it on another device; and what moves under pins."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from threading import Event
from typing import Any

from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import DlplacerError, InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.planning.assemble import contradicts
from dlplacer.planning.constrain import constrained
from dlplacer.planning.place import place
from dlplacer.planning.warm_start import followed
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.symmetry import interchangeable

_BOUND_S = 0.3
_LOOK_SHARE = 0.3
"""Of the time for one device, what is left to bounds at most; a solve gets the rest."""


@dataclass(frozen=True)
class Elsewhere:
    """The step with an op on another device.

    Attributes
    ----------
    op, device
        The op, and where it is held.
    moved_alone_s
        Step time if it moves with its colocation group and all else stays, in the plan's order; None where the memory
        does not allow it.
    makespan_s, lower_bound_s
        The shortest step found with it there, all else free; and what no such step can beat.
    kept
        An op that is held where it is, since the devices are interchangeable: else all might change places.
    note
        Why there is no step.
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
class PinnedPlan:
    """A plan's problem with pins, solved again.

    Attributes
    ----------
    pins
        Op → device, as they are held.
    plan
        The plan with the pins.
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
    """What becomes of a plan under pins: its problem solved again, beginning with it.

    Raises
    ------
    InputError, InfeasibleError, NoPlanError
        As `dlplacer.planning.constrain.constrained` and `dlplacer.planning.place.place` do.
    """
    graph = constrained(plan.graph, plan.topology, pins, colocate)
    found = _placed(plan, graph, seconds, workers, stop)
    moved = {
        op: (device, found.placement[op]) for op, device in plan.placement.items() if found.placement[op] != device
    }
    added = {op: device for op, device in graph.constraints.pins.items() if op not in plan.graph.constraints.pins}
    return PinnedPlan(added, found, moved)


def elsewhere(
    plan: Plan, op: str, seconds: float = 10.0, *, workers: int | None = None, stop: Event | None = None
) -> Iterator[Elsewhere]:
    """The step with an op on each of the other devices that may run it.

    Parameters
    ----------
    seconds
        For all devices together.
    """
    others = [device.id for device in plan.topology.devices if device.id != plan.placement[op]]
    until = time.monotonic() + seconds
    for number, device in enumerate(others):
        share_s = max(0.0, until - time.monotonic()) / (len(others) - number)
        yield _on(plan, op, device, share_s, workers, stop or Event())


def _on(plan: Plan, op: str, device: str, seconds: float, workers: int | None, stop: Event) -> Elsewhere:
    began = time.monotonic()
    try:
        free = _freed(plan, op)
        alone_s = _moved_alone_s(free, op, device)
        kept = _anchor(free, op, device)
        pins = [(op, device), *([(kept, free.placement[kept])] if kept else [])]
        graph = constrained(free.graph, free.topology, pins)
        problem = build_problem(graph, free.topology, free.options)
        bound = lower_bounds(build_instance(problem), min(_BOUND_S, _LOOK_SHARE * seconds)).makespan
        bound_s, found_s = float(bound * problem.tick_s), alone_s
        left_s = seconds - (time.monotonic() - began)
        if left_s > 0 and not stop.is_set():
            found = _placed(free, graph, left_s, workers, stop)
            bound_s = max(bound_s, found.lower_bound_s)
            found_s = found.makespan_s if alone_s is None else min(alone_s, found.makespan_s)
    except InternalError:
        raise
    except DlplacerError as error:
        return Elsewhere(op, device, note=str(error))
    if found_s is not None and contradicts(bound_s, found_s):
        raise InternalError(
            f"with op {op!r} on {device!r} the lower bound is {bound_s:.9g} s, above the {found_s:.9g} s of a plan; "
            "please report it"
        )
    return Elsewhere(op, device, alone_s, found_s, bound_s, kept)


def _freed(plan: Plan, op: str) -> Plan:
    """The plan without the pins of the op and its group, which are what is asked about."""
    group = next((ops for ops in plan.graph.colocation_groups if op in ops), (op,))
    held = plan.graph.constraints
    pins = {name: device for name, device in held.pins.items() if name not in group}
    return replace(plan, graph=replace(plan.graph, constraints=Constraints(pins, held.colocate)))


def _moved_alone_s(plan: Plan, op: str, device: str) -> float | None:
    group = next((ops for ops in plan.graph.colocation_groups if op in ops), (op,))
    pins = {name: device if name in group else here for name, here in plan.placement.items()}
    graph = replace(plan.graph, constraints=Constraints(pins))
    try:
        found = followed(build_problem(graph, plan.topology, plan.options), plan)
    except DlplacerError:
        return None
    return None if found is None else found.makespan_s


def _anchor(plan: Plan, op: str, device: str) -> str:
    """The longest other op beside it, to be held there where the two devices could just exchange all that they have."""
    problem = build_problem(plan.graph, plan.topology, plan.options)
    index = plan.topology.device_index
    pair = {index[device], index[plan.placement[op]]}
    if not any(pair <= set(members) for members in interchangeable(build_instance(problem))):
        return ""
    group = next((ops for ops in plan.graph.colocation_groups if op in ops), (op,))
    beside = [entry for entry in plan.ops if entry.device == plan.placement[op] and entry.op not in group]
    longest = max(beside, key=lambda entry: entry.end_s - entry.start_s, default=None)
    return "" if longest is None or longest.end_s == longest.start_s else longest.op


def _placed(plan: Plan, graph: OpGraph, seconds: float, workers: int | None, stop: Event | None) -> Plan:
    return place(
        graph,
        plan.topology,
        plan.options,
        time_limit_s=max(seconds, 0.05),
        workers=workers,
        stop=stop,
        warm_start=plan,
    ).plan
