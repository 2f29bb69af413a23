"""The step time if something were different: a link, a device, memory, an op, or the device of an op.

Changes are ranked by their gains: bounds first, then solves within a budget.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import zip_longest
from math import inf
from threading import Event
from typing import Any

from dlplacer.core.abilities import Shown
from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import DlplacerError, InputError, InternalError
from dlplacer.core.expect import printable
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan
from dlplacer.core.table import Column, Table
from dlplacer.core.topology import Device, Topology
from dlplacer.core.units import format_seconds
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.assemble import contradicts, with_bound
from dlplacer.planning.constrain import constrained
from dlplacer.planning.place import place
from dlplacer.planning.warm_start import followed
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.solvers.bounds import lower_bounds
from dlplacer.solvers.instance.instance import build_instance, interchangeable

ALL_LINKS = "all links twice as fast"
_BUSIEST, _LONGEST = 3, 10
"""Links and ops that are changed one by one: those that are busy longest."""

_MORE_MEMORY = 1.25


@dataclass(frozen=True)
class Change:
    """One thing that is different.

    Attributes
    ----------
    made
        The graph and the machine with the change; made on demand, because there are many changes.
    """

    kind: str
    text: str
    made: Callable[[], tuple[OpGraph, Topology]] = field(repr=False)


def changes(plan: Plan) -> Iterator[Change]:
    """All changes of a plan, in the order in which they are looked at: a budget that is too small leaves out the last.

    The busiest links twice as fast, then all of them; one more device of each type; a quarter more memory; each of the
    longest ops in half its time.
    """
    yield from _faster_links(plan)
    for kind in plan.topology.device_types:
        model = max((each for each in plan.topology.devices if each.type == kind), key=partial(_joined_by, plan))
        if any(model.id in (link.source, link.target) for link in plan.topology.links) or not plan.graph.edges:
            yield Change("device", f"one more {kind}, joined as {model.id} is", partial(_with_device, plan, model))
    most = sum(op.footprint_bytes for op in plan.graph.ops) + 2 * sum(edge.bytes for edge in plan.graph.edges)
    if any(device.memory_bytes is not None and device.memory_bytes < most for device in plan.topology.devices):
        more = (device.memory_bytes and int(_MORE_MEMORY * device.memory_bytes) for device in plan.topology.devices)
        devices = (replace(each, memory_bytes=size) for each, size in zip(plan.topology.devices, more, strict=True))
        roomy = replace(plan.topology, devices=tuple(devices))
        yield Change("memory", "25 % more memory on every device", lambda: (plan.graph, roomy))
    entries = sorted(plan.ops, key=lambda entry: entry.start_s - entry.end_s)[:_LONGEST]
    for op in (plan.graph.op(entry.op) for entry in entries if entry.end_s > entry.start_s):
        where = f" of {op.module}" if op.module else ""
        yield Change("op", f"op {op.id}{where} twice as fast", partial(_with_faster_op, plan, op))


def _joined_by(plan: Plan, device: Device) -> float:
    """Bytes per second of all links of a device."""
    return sum(link.total_bytes_per_s for link in plan.topology.links if device.id in (link.source, link.target))


def _faster_links(plan: Plan) -> Iterator[Change]:
    links = plan.topology.link_between
    by_ends = {frozenset((link.source, link.target)): link for link in plan.topology.links}
    used: Counter[frozenset[str]] = Counter()
    for transfer in plan.transfers:
        for segment in transfer.segments:
            for hop in segment.route:
                used[frozenset(hop)] += transfer.bytes / links[hop].total_bytes_per_s  # type: ignore[assignment]
    for ends, _ in used.most_common(_BUSIEST):
        text = f"link {by_ends[ends].source} – {by_ends[ends].target} twice as fast"
        yield Change("link", text, partial(_with_faster_links, plan, {ends}))
    if len(used) > 1:
        yield Change("link", ALL_LINKS, partial(_with_faster_links, plan, set(by_ends)))


def _with_faster_links(plan: Plan, chosen: set[frozenset[str]]) -> tuple[OpGraph, Topology]:
    links = tuple(
        replace(link, bytes_per_s=2 * link.bytes_per_s) if frozenset((link.source, link.target)) in chosen else link
        for link in plan.topology.links
    )
    return plan.graph, replace(plan.topology, links=links)


def _with_device(plan: Plan, model: Device) -> tuple[OpGraph, Topology]:
    taken, number = {node.id for node in plan.topology.nodes}, 1
    while (name := f"{model.id}+{number}") in taken:
        number += 1
    own = [link for link in plan.topology.links if model.id in (link.source, link.target)]
    copies = [replace(link, source=name) if link.source == model.id else replace(link, target=name) for link in own]
    # Where devices are joined to each other and not by routers, the new one is joined to its model too.
    peers = [link for link in own if {link.source, link.target} <= set(plan.topology.device_index)]
    if peers:
        copies.append(replace(max(peers, key=lambda link: link.total_bytes_per_s), source=model.id, target=name))
    devices = (*plan.topology.devices, replace(model, id=name))
    topology = replace(plan.topology, devices=devices, links=(*plan.topology.links, *copies))
    return with_times(plan.graph, topology), topology


def _with_faster_op(plan: Plan, op: Op) -> tuple[OpGraph, Topology]:
    times = {kind: time_s / 2 for kind in plan.topology.device_types if (time_s := op.time_on(kind)) is not None}
    ops = tuple(replace(other, time_s=times) if other is op else other for other in plan.graph.ops)
    return replace(plan.graph, ops=ops), plan.topology


Report = Callable[[str, int, int], None]
"""Hears what is looked at, how many changes have been answered, and how many there are."""

_SHOWN = 16
"""Changes that a repr lists: about a screen."""
_BOUND_S = 0.1
"""Seconds for the bound of one change; more of it raises the bound of 2,000 ops by less than a percent."""
_LOOKING_SHARE, _BASE_SHARE = 0.5, 0.12
"""Of the budget, for bounds; and for the plan itself: without it, changes would get the credit for more search."""
_LEAST_S, _LEAST_S_PER_OP = 0.3, 1.5e-3
"""A solve with less time finds no more than the plan's own order does."""
_TINY = 0.002
"""A gain that counts as none."""


@dataclass(frozen=True)
class Answer:
    """The effect of a change on the step time.

    Attributes
    ----------
    status
        ``solved``: solved again, beginning with the plan. ``kept``: the plan as it is, or its placement and order under
        the change; solving again may find more. ``no gain``: its bound shows that it gains next to nothing. ``not
        tried``: see the note.
    """

    kind: str
    text: str
    status: str
    makespan_s: float | None = None
    lower_bound_s: float | None = None
    note: str = ""

    def gain(self, base_s: float) -> float | None:
        """(base − step) ÷ base: the share by which the step found with the change is shorter; below 0 it is longer."""
        return None if self.makespan_s is None or not base_s else 1 - self.makespan_s / base_s

    def most(self, base_s: float) -> float | None:
        """(base − bound) ÷ base: the gain that no plan with the change exceeds."""
        return None if self.lower_bound_s is None or not base_s else max(0.0, 1 - self.lower_bound_s / base_s)

    def to_dict(self, base_s: float) -> dict[str, Any]:
        """As in ``dlplacer explain --json``."""
        own = asdict(self)
        return own | {"change": own.pop("text"), "gain": self.gain(base_s), "most_gain": self.most(base_s)}


@dataclass(frozen=True, repr=False)
class WhatWouldHelp(Shown):
    """The answers, the largest gain first, those without a step last.

    Attributes
    ----------
    base
        The plan that gains refer to: the one given, or a better one that solving again found.
    """

    base: Plan = field(repr=False)
    given_s: float
    answers: tuple[Answer, ...] = field(repr=False)
    seconds: float = field(default=0.0, compare=False)

    def __repr__(self) -> str:
        base_s = self.base.makespan_s
        lines = [f"<WhatWouldHelp: {len(self.answers)} changes of a step of {format_seconds(base_s)}"]
        for answer in self.answers[:_SHOWN]:
            gain = answer.gain(base_s)
            lines.append(f"  {'-' if gain is None else f'{100 * gain:.1f} %':>8}  {printable(answer.text)}")
        return "\n".join(lines) + ">"

    @property
    def table(self) -> Table:
        """A row per change, the largest gain first."""
        records = [answer.to_dict(self.base.makespan_s) for answer in self.answers]
        described = {
            "change": Column("change", "what would help"),
            "makespan_s": Column("makespan_s", "step", "seconds"),
            "gain": Column("gain", "", "change"),
            "most_gain": Column("most_gain", "at most", "change"),
            "status": Column("status", "", "text", ""),
        }
        names = ("kind", "change", "status", "makespan_s", "lower_bound_s", "gain", "most_gain", "note")
        return Table.of(records, [described.get(name, Column(name)) for name in names])

    def to_dict(self) -> dict[str, Any]:
        """The field ``what_would_help`` of ``dlplacer explain --json``."""
        base = self.base
        return {
            "base_s": base.makespan_s,
            "base_lower_bound_s": base.lower_bound_s,
            "plan_s": self.given_s,
            "seconds": self.seconds,
            "changes": [answer.to_dict(base.makespan_s) for answer in self.answers],
        }


def solved_again(
    plan: Plan,
    seconds: float,
    graph: OpGraph | None = None,
    topology: Topology | None = None,
    *,
    seed: int = 0,
    workers: int | None = None,
    stop: Event | None = None,
) -> Plan:
    """The plan of a solve that begins with a plan, of its own graph and machine unless others are given."""
    return place(
        graph or plan.graph,
        topology or plan.topology,
        plan.options,
        time_limit_s=max(seconds, 0.05),
        seed=seed,
        workers=workers,
        stop=stop,
        warm_start=plan,
    ).plan


def bound_of(problem: Problem, seconds: float) -> float:
    """A lower bound of a problem in seconds, spending about the given time."""
    return float(lower_bounds(build_instance(problem), seconds).makespan * problem.tick_s)


def require_consistent(what: str, bound_s: float, makespan_s: float | None) -> None:
    """Raise InternalError if a bound is above the step of a plan with this change."""
    if makespan_s is not None and contradicts(bound_s, makespan_s):
        raise InternalError(
            f"with {what} the lower bound is {bound_s:.9g} s, above the {makespan_s:.9g} s of a plan; please report it"
        )


def what_would_help(
    plan: Plan,
    budget_s: float = 60.0,
    *,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Report = lambda what, done, total: None,
    stop: Event | None = None,
) -> WhatWouldHelp:
    """The step time with one thing changed, for every change that may help.

    First each of `changes` gets a lower bound. Then those with the largest possible gains are solved, each in an equal
    part of the time left, with the plan as the warm start.

    Parameters
    ----------
    budget_s
        Seconds for everything. It is exceeded by at most one step of a solve that cannot be interrupted.
    stop
        Once it is set, changes that have not been solved keep the answers they have.
    """
    if not 0 < budget_s < float("inf"):
        raise InputError(f"the budget is {budget_s:g} s; it must be positive and finite")
    return _Search(plan, budget_s, on_progress, stop or Event(), seed, workers).run()


class _Search:
    """The answers so far: for every change from its bound and the plan at hand, then from solves."""

    def __init__(
        self, plan: Plan, budget_s: float, report: Report, stop: Event, seed: int, workers: int | None
    ) -> None:
        self.base, self.budget_s, self.report, self.stop = with_bound(plan, 0.0), budget_s, report, stop
        self.seed, self.workers, self.began = seed, workers, time.monotonic()
        self.answers: list[Answer] = []

    def run(self) -> WhatWouldHelp:
        given_s = self.base.makespan_s
        # More search may shorten the plan itself, which no change must be praised for; and it proves a bound.
        self.report("the plan itself", 0, 1)
        better = self._place(_BASE_SHARE * self.budget_s)
        if better is not None:
            self.base = with_bound(min(better, self.base, key=lambda plan: plan.makespan_s), better.lower_bound_s)
        found = list(changes(self.base))
        self._look_at(found)
        self._solve_best(found)
        # The plan's placement and order under the changes for which no solve was left, while there is time.
        for position, answer in enumerate(self.answers):
            if answer.status == "kept" and self.left_s > 0:
                plan = followed(self._problem(found[position]), self.base)
                if plan is not None and plan.makespan_s < _or(answer.makespan_s, inf):
                    self.answers[position] = replace(answer, makespan_s=plan.makespan_s)
        # All links faster are no worse than one of them, even where one was solved and all were not.
        least_s = min((_or(answer.makespan_s, inf) for answer in self.answers if answer.kind == "link"), default=inf)
        answers = [
            replace(each, makespan_s=least_s) if each.text == ALL_LINKS and each.makespan_s is not None else each
            for each in self.answers
        ]
        answers.sort(key=lambda answer: (_or(answer.makespan_s, inf), _or(answer.lower_bound_s, inf)))
        return WhatWouldHelp(self.base, given_s, tuple(answers), time.monotonic() - self.began)

    @property
    def left_s(self) -> float:
        return 0.0 if self.stop.is_set() else max(0.0, self.began + self.budget_s - time.monotonic())

    def _place(self, seconds: float, graph: OpGraph | None = None, topology: Topology | None = None) -> Plan | None:
        """The plan of a solve; None if it finds none."""
        try:
            return solved_again(
                self.base, seconds, graph, topology, seed=self.seed, workers=self.workers, stop=self.stop
            )
        except InternalError:
            raise
        except DlplacerError:
            return None

    def _look_at(self, found: Sequence[Change]) -> None:
        """The bound under each change; the plan as it is is what is known of the step so far."""
        until = time.monotonic() + _LOOKING_SHARE * self.left_s
        base_s = self.base.makespan_s
        for number, change in enumerate(found):
            if time.monotonic() > until or not self.left_s:
                note = "there was no time to look at it; raise --budget"
                self.answers.append(Answer(change.kind, change.text, "not tried", note=note))
                continue
            self.report(change.text, number, 2 * len(found))
            try:
                bound_s = bound_of(self._problem(change), _BOUND_S)
            except InternalError:
                raise
            except DlplacerError as error:
                self.answers.append(Answer(change.kind, change.text, "not tried", note=str(error)))
                continue
            status = "no gain" if bound_s >= base_s * (1 - _TINY) else "kept"
            # The plan as it is remains possible under every change, and takes no longer.
            self.answers.append(Answer(change.kind, change.text, status, base_s, bound_s))

    def _solve_best(self, found: Sequence[Change]) -> None:
        """Solve those that may gain most, and share the time that others leave."""
        order = _in_turn(self.answers)
        least_s = _LEAST_S + _LEAST_S_PER_OP * len(self.base.graph.ops)
        for number, position in enumerate(order):
            rest = min(len(order) - number, max(1, int(self.left_s / least_s)))
            share_s, change, answer = self.left_s / rest, found[position], self.answers[position]
            if share_s < least_s:
                break
            self.report(change.text, len(found) + number, len(found) + len(order))
            plan = self._place(share_s, *change.made())
            if plan is not None:
                makespan_s = min(plan.makespan_s, _or(answer.makespan_s, inf))
                bound_s = max(plan.lower_bound_s, _or(answer.lower_bound_s, 0.0))
                require_consistent(f"the change {change.text!r}", bound_s, makespan_s)
                self.answers[position] = replace(answer, status="solved", makespan_s=makespan_s, lower_bound_s=bound_s)

    def _problem(self, change: Change) -> Problem:
        return build_problem(*change.made(), self.base.options)


def _in_turn(answers: Sequence[Answer]) -> list[int]:
    """Positions of the answers that are open: of every kind the one with the lowest bound, then the second of each."""
    kinds: dict[str, list[int]] = {}
    for position in sorted(range(len(answers)), key=lambda each: _or(answers[each].lower_bound_s, 0.0)):
        if answers[position].status == "kept":
            kinds.setdefault(answers[position].kind, []).append(position)
    first = sorted(kinds.values(), key=min)
    return [position for rank in zip_longest(*first) for position in rank if position is not None]


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


_ELSEWHERE_BOUND_S = 0.3
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
    kept, alone_s = _anchor(plan, op, group, device), None
    held = Constraints({name: device if name in group else here for name, here in plan.placement.items()})
    with suppress(DlplacerError):
        moved = build_problem(replace(plan.graph, constraints=held), plan.topology, plan.options)
        alone_s = None if (there := followed(moved, plan)) is None else there.makespan_s
    pins = [(op, device), *([(kept, plan.placement[kept])] if kept else [])]
    graph = constrained(plan.graph, plan.topology, pins)
    bound_s = bound_of(
        build_problem(graph, plan.topology, plan.options), min(_ELSEWHERE_BOUND_S, _LOOK_SHARE * seconds)
    )
    steps = [] if alone_s is None else [alone_s]
    if (left_s := until - time.monotonic()) > 0 and not stop.is_set():
        found = solved_again(plan, left_s, graph, workers=workers, stop=stop)
        bound_s = max(bound_s, found.lower_bound_s)
        steps.append(found.makespan_s)
    best_s = min(steps, default=None)
    require_consistent(f"op {op!r} on {device!r}", bound_s, best_s)
    return Elsewhere(op, device, alone_s, best_s, bound_s, kept)


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
