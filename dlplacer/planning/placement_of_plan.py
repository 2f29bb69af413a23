"""A plan's placement on another problem: by op id, and by neighbours where an op is new."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.problem.problem import Problem


@dataclass(frozen=True)
class MappedPlacement:
    """Where ops go that follow a plan.

    Attributes
    ----------
    device
        [op] → position of its device; one that the op may use, and one for a colocation group.
    known, moved, followed
        Ops on the device that the plan says; on another, which they or their group may use; ops that the plan does not
        have, which follow their neighbours.
    """

    device: tuple[int, ...]
    known: int
    moved: int
    followed: int

    def __str__(self) -> str:
        text = f"{self.known} of {len(self.device)} ops where the plan has them"
        if self.moved:
            text += f", {self.moved} where pins, groups or devices let them"
        if self.followed:
            text += f", {self.followed} that it does not have with their neighbours"
        return text


def placement_from(plan: Plan, problem: Problem) -> MappedPlacement:
    """Where the ops of a problem go to follow a plan.

    An op goes where the plan has the op of the same id, or one that was made from it or that it was made from. A
    colocation group goes where most of its work is. What the plan does not have goes to a device of what it reads, or
    else of what reads it. Devices are matched by name, the others in order, those of the same type first.
    """
    wanted = list(_wanted(plan, problem))
    blocks = list(problem.groups)
    grouped = {op for group in blocks for op in group}
    blocks += [(op,) for op in range(problem.op_count) if op not in grouped]
    allowed: dict[int, tuple[int, ...]] = {}
    for group in blocks:
        allowed.update(dict.fromkeys(group, _allowed(problem, group)))
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
    return MappedPlacement(found, known, problem.op_count - known - followed, followed)


def _wanted(plan: Plan, problem: Problem) -> Iterator[int | None]:
    """For every op the position of the device where the plan has it."""
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
    """Device of one machine → position of the device of the other that stands for it, if there is one."""
    found = {device.id: new.device_index[device.id] for device in old.devices if device.id in new.device_index}
    for same_type in (True, False):
        free = [place for place in range(len(new.devices)) if place not in found.values()]
        for device in old.devices:
            fitting = [place for place in free if not same_type or new.devices[place].type == device.type]
            if device.id not in found and fitting:
                found[device.id] = fitting[0]
                free.remove(fitting[0])
    return found


def _allowed(problem: Problem, group: tuple[int, ...]) -> tuple[int, ...]:
    common = set.intersection(*(set(problem.allowed[op]) for op in group))
    return tuple(sorted(common))


def _follow(
    problem: Problem, blocks: list[tuple[int, ...]], allowed: Mapping[int, tuple[int, ...]], device: dict[int, int]
) -> None:
    """Decide the ops that are left, each with its group: by what it reads, then by what reads it."""
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
