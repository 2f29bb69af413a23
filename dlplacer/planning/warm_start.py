"""Warm starts: a solve begins with a plan of the same problem, or of another graph, machine or granularity."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from dlplacer.check import violations
from dlplacer.core.errors import DlplacerError
from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.core.topology import Topology
from dlplacer.core.units import format_seconds
from dlplacer.planning.assemble import plan_of
from dlplacer.problem.problem import Problem
from dlplacer.problem.simulate import in_order, replay
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Incumbent, Outcome, keeps_blocks_and_memory


def placement_from(plan: Plan, problem: Problem) -> tuple[tuple[int, ...], str]:
    """The placement that follows a plan, [op] → position of its device, and a text on how many ops follow the plan.

    An op goes to the device on which the plan has it, an op made from it, or an op that it was made from. A
    colocation group goes to the device with most of its work. An op that the plan lacks goes to a device of its
    producers, or else of its readers. Devices are matched by name, then by type, then in order.
    """
    wanted = list(_wanted(plan, problem))
    blocks = list(problem.groups)
    grouped = {op for group in blocks for op in group}
    blocks += [(op,) for op in range(problem.op_count) if op not in grouped]
    allowed: dict[int, tuple[int, ...]] = {}
    for group in blocks:
        common = set.intersection(*(set(problem.allowed[op]) for op in group))
        allowed.update(dict.fromkeys(group, tuple(sorted(common))))
    device: dict[int, int] = {}
    for group in blocks:
        votes: dict[int, float] = defaultdict(float)
        for op in group:
            choice = wanted[op]
            if choice is not None and choice in allowed[op]:
                votes[choice] += 1e-9 + max(ticks or 0 for ticks in problem.duration[op])
        if votes:
            device.update(dict.fromkeys(group, max(votes, key=votes.__getitem__)))
    _follow(problem, blocks, allowed, device)
    found = tuple(device[op] for op in range(problem.op_count))
    known = sum(choice == here for choice, here in zip(wanted, found, strict=True))
    followed = sum(choice is None for choice in wanted)
    text = f"{known} of {len(found)} ops on the plan's devices"
    if moved := len(found) - known - followed:
        text += f", {moved} moved because of pins, groups or devices"
    if followed:
        text += f", {followed} that the plan lacks with their neighbours"
    return found, text


def _wanted(plan: Plan, problem: Problem) -> Iterator[int | None]:
    """For every op, the position of the problem's device that matches its planned device; None if either is missing."""
    partner = _partners(plan.topology, problem.topology)
    home: dict[str, str] = {}
    for op in plan.graph.ops:
        for name in op.origin:
            home.setdefault(name, plan.placement[op.id])
    home |= plan.placement
    for op in problem.graph.ops:
        known = [name for name in (op.id, *op.origin) if name in home]
        yield partner.get(home[known[0]]) if known else None


def _partners(old: Topology, new: Topology) -> Mapping[str, int]:
    """Device of one machine → position of its counterpart in the other, if there is one."""
    found = {device.id: new.device_index[device.id] for device in old.devices if device.id in new.device_index}
    for same_type in (True, False):
        free = [place for place in range(len(new.devices)) if place not in found.values()]
        for device in old.devices:
            fitting = [place for place in free if not same_type or new.devices[place].type == device.type]
            if device.id not in found and fitting:
                found[device.id] = fitting[0]
                free.remove(fitting[0])
    return found


def _follow(
    problem: Problem, blocks: list[tuple[int, ...]], allowed: Mapping[int, tuple[int, ...]], device: dict[int, int]
) -> None:
    """Place the remaining ops, each with its group: by producers, then by readers, then on the least loaded device."""
    group_of = {op: group for group in blocks for op in group}
    for forward in (True, False):
        for op in problem.topological if forward else reversed(problem.topological):
            if op in device:
                continue
            arcs = problem.arcs_into[op] if forward else problem.arcs_from[op]
            near = sorted(((arc.size, arc.source if forward else arc.target) for arc in arcs), reverse=True)
            found = next((device[end] for _, end in near if device.get(end) in allowed[op]), None)
            if found is not None:
                device.update(dict.fromkeys(group_of[op], found))
    load = [0] * problem.device_count
    for op, here in device.items():
        load[here] += problem.duration[op][here] or 0
    for op in problem.topological:
        if op not in device:
            least = min(allowed[op], key=load.__getitem__)
            device.update(dict.fromkeys(group_of[op], least))
            load[least] += sum(problem.duration[member][least] or 0 for member in group_of[op])


class WarmStart:
    """The warm start of a solve."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan = problem, plan
        self.placement, self.followed = placement_from(plan, problem)
        self.note = "the solve did not begin"

    def begin(self, instance: Instance, incumbent: Incumbent) -> None:
        """Offer the plan's placement, in the plan's order, to an empty incumbent."""
        order = _ordered(self.problem, self.plan, [[end for end, _ in arcs] for arcs in instance.predecessors])
        # The barrier, if there is one, may run on any device.
        device = [*self.placement, *[0] * (instance.op_count - self.problem.op_count)]
        schedule = in_sequence(instance, device, order)
        if schedule is None or not keeps_blocks_and_memory(instance, schedule) or not incumbent.offer(schedule):
            self.note = f"not used: {self.followed}, but {self._without_route() or 'it exceeds the memory'}"
            return
        plan, problem = self.plan, self.problem
        same = (plan.graph, plan.topology, plan.options) == (problem.graph, problem.topology, problem.options)
        bound_s = plan.lower_bound_s if same else 0.0
        stated = f"; its own lower bound, {format_seconds(bound_s)}, is ignored" if bound_s else ""
        self.note = f"{self.followed}{stated}"

    def if_better(
        self, found: Plan | None, outcome: Outcome, method: str, provenance: Mapping[str, Any]
    ) -> Plan | None:
        """The warm-start plan, with the new bound, if that plan is valid and faster than `found`; else `found`."""
        bound = Outcome(None, outcome.lower_bound)
        for ops, transfers in self._as_it_was():
            if found is None or max(entry.end_s for entry in ops) < found.makespan_s:
                try:
                    warm = plan_of(self.problem, ops, transfers, bound, method, 0.0, provenance)
                except DlplacerError:
                    continue
                if not violations(warm):
                    return warm
        return found

    def _as_it_was(self) -> Iterator[tuple[tuple[ScheduledOp, ...], tuple[Transfer, ...]]]:
        """Ops and transfers of the plan, then of a replay of its order; either may break a rule of the problem."""
        devices = self.problem.topology.device_index
        if self.plan.scheduled.keys() == self.problem.graph.index.keys() and all(
            devices.get(entry.device) == self.placement[self.problem.graph.index[entry.op]] for entry in self.plan.ops
        ):
            yield self.plan.ops, self.plan.transfers
        if self._without_route():
            return
        reads = [[arc.source for arc in arcs] for arcs in self.problem.arcs_into]
        yield replay(self.problem, self.placement, _ordered(self.problem, self.plan, reads))

    def _without_route(self) -> str:
        """A text on a pair of ops on devices that no route joins; empty if there is none."""
        ops, devices = self.problem.graph.ops, self.problem.topology.devices
        for arc in self.problem.arcs:
            here, there = (self.placement[end] for end in (arc.source, arc.target))
            if self.problem.delay[arc.size][here][there] is None:
                ends = f"{devices[here].id!r} and {devices[there].id!r}"
                return f"no route joins {ends}, its devices of {ops[arc.source].id!r} and {ops[arc.target].id!r}"
        return ""


def _ordered(problem: Problem, plan: Plan, reads: Sequence[Sequence[int]]) -> list[int]:
    """The ops of a problem or instance, each after its inputs, and otherwise in the plan's order."""
    count = len(reads)
    place = {entry.op: number for number, entry in enumerate(in_order(plan))}
    for made in plan.graph.ops:
        for name in made.origin:
            place.setdefault(name, place[made.id])
    key: list[float] = [-1.0] * count
    known = [False] * count
    for position, node in enumerate(problem.graph.ops):
        names = [name for name in (node.id, *node.origin) if name in place]
        known[position] = bool(names)
        key[position] = max((place[name] for name in names), default=-1)
    waits = [len(set(sources)) for sources in reads]
    readers: list[list[int]] = [[] for _ in range(count)]
    for target, sources in enumerate(reads):
        for source in dict.fromkeys(sources):
            readers[source].append(target)
    ready = [(key[op], op) for op in range(count) if not waits[op]]
    heapify(ready)
    done: list[int] = []
    while ready:
        _, op = heappop(ready)
        done.append(op)
        for reader in readers[op]:
            waits[reader] -= 1
            if not known[reader]:
                # An op that the plan lacks comes as early as possible.
                key[reader] = max(key[reader], key[op])
            if not waits[reader]:
                heappush(ready, (key[reader], reader))
    return done
