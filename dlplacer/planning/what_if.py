"""The step time if a link, a device, the memory, an op, or the device of an op were different.

Every question is a solve with one change, warm-started from the given plan.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
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
from dlplacer.core.table import Table
from dlplacer.core.topology import Device, Topology
from dlplacer.core.units import format_seconds
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.assemble import with_bound
from dlplacer.planning.constrain import constrained
from dlplacer.planning.place import place
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.instance.instance import build_instance, interchangeable

ALL_LINKS = "all links twice as fast"
_BUSIEST, _LONGEST = 3, 3
"""Numbers of the busiest links and the longest ops that are changed one by one."""

_MORE_MEMORY = 1.25
_BASE_SHARE = 0.2
"""Share of the budget for the plan itself; without it, longer search would count as the gain of a change."""


@dataclass(frozen=True)
class Change:
    """One change of the graph or the machine.

    `made`: Returns the graph and the machine with the change, on demand because there are many changes.
    """

    kind: str
    text: str
    made: Callable[[], tuple[OpGraph, Topology]] = field(repr=False)


def changes(plan: Plan) -> Iterator[Change]:
    """All changes to try for a plan.

    All links twice as fast, then each of the busiest; one more device of each type; a quarter more memory; each of the
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
    """Total bytes per second of a device's links."""
    return sum(link.total_bytes_per_s for link in plan.topology.links if device.id in (link.source, link.target))


def _faster_links(plan: Plan) -> Iterator[Change]:
    links = plan.topology.link_between
    by_ends = {frozenset((link.source, link.target)): link for link in plan.topology.links}
    used: Counter[frozenset[str]] = Counter()
    for transfer in plan.transfers:
        for segment in transfer.segments:
            for hop in segment.route:
                used[frozenset(hop)] += transfer.bytes / links[hop].total_bytes_per_s  # type: ignore[assignment]
    if len(used) > 1:
        yield Change("link", ALL_LINKS, partial(_with_faster_links, plan, set(by_ends)))
    for ends, _ in used.most_common(_BUSIEST):
        text = f"link {by_ends[ends].source} – {by_ends[ends].target} twice as fast"
        yield Change("link", text, partial(_with_faster_links, plan, {ends}))


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
    # If links join devices directly, without routers, the new device also gets a link to its model.
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
"""Receives the text of the current change, the number of changes done, and the number of all changes."""

_SHOWN = 16
"""Number of changes in a repr, about a screen."""


@dataclass(frozen=True)
class Answer:
    """The effect of a change on the step time.

    `status`: ``solved``, with the plan as warm start, or ``not tried``, for the reason in `note`.
    """

    kind: str
    text: str
    status: str
    makespan_s: float | None = None
    lower_bound_s: float | None = None
    note: str = ""

    def gain(self, base_s: float) -> float | None:
        """(base − step) ÷ base: relative gain of the step found with the change; negative if that step is longer."""
        return None if self.makespan_s is None or not base_s else 1 - self.makespan_s / base_s

    def most(self, base_s: float) -> float | None:
        """(base − bound) ÷ base: an upper bound on the gain of any plan with the change."""
        return None if self.lower_bound_s is None or not base_s else max(0.0, 1 - self.lower_bound_s / base_s)

    def to_dict(self, base_s: float) -> dict[str, Any]:
        """The answer as in ``dlplacer explain --json``."""
        own = asdict(self)
        return own | {"change": own.pop("text"), "gain": self.gain(base_s), "most_gain": self.most(base_s)}


@dataclass(frozen=True, repr=False)
class WhatWouldHelp(Shown):
    """An answer for every change, the largest gain first; changes that were not tried come last.

    `base`: The plan that gains refer to, which is the given plan or a better one from another solve.
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
        heads = ["kind", "change|what would help", "status||text|", "makespan_s|step|seconds", "lower_bound_s"]
        heads += ["gain||change", "most_gain|at most|change", "note"]
        rows = (tuple(record[head.partition("|")[0]] for head in heads) for record in records)
        return Table.described(rows, *heads)

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
    plan: Plan, seconds: float, graph: OpGraph | None = None, topology: Topology | None = None, **solving: Any
) -> Plan:
    """The plan of a new solve that starts from `plan`; `graph` and `topology` default to those of `plan`."""
    limit_s, graph, topology = max(seconds, 0.05), graph or plan.graph, topology or plan.topology
    return place(graph, topology, plan.options, time_limit_s=limit_s, warm_start=plan, **solving).plan


def what_would_help(
    plan: Plan,
    budget_s: float = 60.0,
    *,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Report = lambda what, done, total: None,
    stop: Event | None = None,
) -> WhatWouldHelp:
    """The step time with every change that `changes` yields, each solved in an equal part of the remaining time.

    `budget_s`: Seconds for the whole call. Only the part of a solve that cannot be interrupted may exceed it. `stop`:
    Once it is set, the remaining changes are not tried.
    """
    if not 0 < budget_s < inf:
        raise InputError(f"the budget is {budget_s:g} s; it must be positive and finite")
    began, stop = time.monotonic(), stop or Event()

    def solved(seconds: float, *changed: OpGraph | Topology) -> Plan | str:
        try:
            return solved_again(base, seconds, *changed, seed=seed, workers=workers, stop=stop)  # type: ignore[arg-type]
        except InternalError:
            raise
        except DlplacerError as error:
            return str(error)

    # Longer search may shorten the plan itself, which must not count as the gain of a change. It also proves a bound.
    base = with_bound(plan, 0.0)
    on_progress("the plan itself", 0, 1)
    better = solved(_BASE_SHARE * budget_s)
    if isinstance(better, Plan):
        base = with_bound(min(better, base, key=lambda plan: plan.makespan_s), better.lower_bound_s)
    # The first change of every kind, then the second of each, because a small budget leaves out the last ones.
    ranks, found, answers = Counter[str](), list[tuple[int, Change]](), list[Answer]()
    for change in changes(base):
        ranks[change.kind] += 1
        found.append((ranks[change.kind], change))
    found.sort(key=lambda ranked: ranked[0])
    for number, (_, change) in enumerate(found):
        left_s = 0.0 if stop.is_set() else began + budget_s - time.monotonic()
        on_progress(change.text, number, len(found))
        untried = "there was no time to solve it; raise --budget"
        there = solved(left_s / (len(found) - number), *change.made()) if left_s > 0 else untried
        if isinstance(there, str):
            answers.append(Answer(change.kind, change.text, "not tried", note=there))
            continue
        # The unchanged plan remains possible with every change.
        least_s = min(there.makespan_s, base.makespan_s)
        answers.append(Answer(change.kind, change.text, "solved", least_s, there.lower_bound_s))
    # All links twice as fast are no worse than one of them.
    least_s = min((one.makespan_s or inf for one in answers if one.kind == "link"), default=inf)
    answers = [
        replace(one, makespan_s=least_s) if one.text == ALL_LINKS and one.makespan_s is not None else one
        for one in answers
    ]
    answers.sort(key=lambda one: inf if one.makespan_s is None else one.makespan_s)
    return WhatWouldHelp(base, plan.makespan_s, tuple(answers), time.monotonic() - began)


@dataclass(frozen=True)
class Elsewhere:
    """The step with an op on another device.

    `makespan_s`: The shortest step found with the op there and all else free. `lower_bound_s`: The bound of that solve.
    `kept`: Another op, pinned to the old device so that the solver cannot swap interchangeable devices; else "".
    """

    op: str
    device: str
    makespan_s: float | None = None
    lower_bound_s: float | None = None
    kept: str = ""
    note: str = ""


def elsewhere(
    plan: Plan, op: str, seconds: float = 10.0, *, workers: int | None = None, stop: Event | None = None
) -> Iterator[Elsewhere]:
    """The step with an op on each of the other devices; `note` gives the reason if no step is found."""
    group = next((ops for ops in plan.graph.colocation_groups if op in ops), (op,))
    # Pins of the op and its group are dropped, because the question is about them.
    held = plan.graph.constraints
    pins = {name: device for name, device in held.pins.items() if name not in group}
    free = replace(plan, graph=replace(plan.graph, constraints=Constraints(pins, held.colocate)))
    others = [device.id for device in plan.topology.devices if device.id != plan.placement[op]]
    until = time.monotonic() + seconds
    for number, device in enumerate(others):
        kept = _anchor(free, group, device)
        asked = [(op, device), *([(kept, plan.placement[kept])] if kept else [])]
        share_s = max(0.0, until - time.monotonic()) / (len(others) - number)
        try:
            graph = constrained(free.graph, free.topology, asked)
            there = solved_again(free, share_s, graph, workers=workers, stop=stop)
            yield Elsewhere(op, device, there.makespan_s, there.lower_bound_s, kept)
        except InternalError:
            raise
        except DlplacerError as error:
            yield Elsewhere(op, device, note=str(error))


def _anchor(plan: Plan, group: Sequence[str], device: str) -> str:
    """The longest other op on the group's device, if that device and `device` are interchangeable; else empty."""
    index, here = plan.topology.device_index, plan.placement[group[0]]
    instance = build_instance(build_problem(plan.graph, plan.topology, plan.options))
    if not any({index[device], index[here]} <= set(members) for members in interchangeable(instance)):
        return ""
    beside = [entry for entry in plan.ops if entry.device == here and entry.op not in group]
    longest = max(beside, key=lambda entry: entry.end_s - entry.start_s, default=None)
    return "" if longest is None or longest.end_s == longest.start_s else longest.op
