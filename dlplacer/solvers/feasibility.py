"""Reasons why no plan can exist, each with its numbers and a way out, found with or without a search."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf

from dlplacer.core.errors import InfeasibleError, InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.units import format_bytes, format_seconds
from dlplacer.problem.live_memory import input_bytes, may_bind
from dlplacer.problem.problem import Problem
from dlplacer.solvers.ilp.assignment_model import FAMILIES, WORKING, find_placement
from dlplacer.solvers.instance.instance import Instance, build_instance


def op_text(problem: Problem, op: int) -> str:
    return f"op {problem.graph.ops[op].id!r}"


def devices_text(problem: Problem, op: int, devices: Iterable[int]) -> str:
    names = ", ".join(repr(problem.topology.devices[device].id) for device in devices)
    return f"{op_text(problem, op)} may run on {names}"


def _group_text(problem: Problem, ops: Sequence[int]) -> str:
    """The name of a colocation group, or two of its ops if it comes from the user's constraints."""
    names = {problem.graph.ops[op].colocate for op in ops}
    one, other = (problem.graph.ops[op].id for op in ops[:2])
    return repr(*names) if len(names) == 1 and None not in names else f"({one!r}, {other!r}, …)"


def bytes_text(size: int, other: int) -> str:
    """The size in a readable unit, or in bytes if the other size would read the same."""
    text = format_bytes(size)
    return f"{size} bytes" if text == format_bytes(other) else text


def sizes_text(problem: Problem) -> str:
    """The bytes needed and available: ``the largest op 'a' needs …; devices have …``."""
    kept = list(problem.footprint_bytes)
    if problem.options.memory == "live":
        kept = [working_set(problem, op, min(problem.allowed[op], default=0)) for op in range(problem.op_count)]
    largest = max(range(problem.op_count), key=kept.__getitem__)
    sizes = ["unlimited" if size is None else format_bytes(size) for size in problem.capacity_bytes]
    counts = Counter(zip(sizes, (device.type for device in problem.topology.devices), strict=True))
    rooms = ", ".join(f"{count} × {size} (type {name!r})" for (size, name), count in counts.items())
    return f"the largest {op_text(problem, largest)} needs {format_bytes(kept[largest])}, devices have {rooms}"


def working_set(problem: Problem, op: int, device: int) -> int:
    """The least bytes on a device while an op runs there; each input counts as the smaller of copy and original."""
    group = problem.group_of[op]
    members = (op,) if group is None else problem.groups[group]
    size = sum(problem.resident_bytes[member] for member in members)
    if not problem.duration[op][device]:
        return size
    inputs = sum(min(original, copies) for original, copies in input_bytes(problem, op).values())
    return size + inputs + problem.output_bytes[op] + problem.workspace_bytes[op]


MOST_OPS = 300_000
"""Ops above which no plan is tried: 106,000 are planned in a minute, 10^6 are not."""

_PART_BYTES, _PART_S = 4096, 1.5e-4
"""Bytes and CPU seconds per op and per edge until the first plan."""

EXACT_UP_TO = 40
"""Most ops of positive time for the exact model, which proves under every option; a guess."""


def require_size(graph: OpGraph) -> None:
    """Raise InputError if a graph has more than `MOST_OPS` ops."""
    ops, parts = len(graph.ops), len(graph.ops) + len(graph.edges)
    if ops > MOST_OPS:
        needed = f"{format_bytes(parts * _PART_BYTES)} and {format_seconds(parts * _PART_S)}"
        raise InputError(
            f"the graph has {ops:,} ops and {len(graph.edges):,} edges; at most {MOST_OPS:,} ops are planned, and "
            f"these would need about {needed} before the first plan; make it coarser: --granularity fused joins chains "
            "of ops, --granularity module makes one op of each module"
        )


def require_feasible(problem: Problem) -> None:
    """Raise InfeasibleError if a simple reason excludes every plan.

    Reasons: a group has no common device; an op or group fits on no allowed device (under ``memory: live``, while it
    runs); ops exceed the memory of the only devices that they may use; or no route joins communicating ops.
    """
    instance, live = build_instance(problem), may_bind(problem)
    for ops in instance.members:
        _require_common_device(problem, instance, ops)
        _require_room(problem, instance, ops, live)
    types = [device.type for device in problem.topology.devices]
    for chosen in (None, *dict.fromkeys(types)):
        here = {device for device, name in enumerate(types) if chosen in (None, name)}
        only = (op for op, allowed in enumerate(problem.allowed) if here.issuperset(allowed))
        size = sum(problem.footprint_bytes[op] for op in only)
        sizes = [problem.capacity_bytes[device] for device in here]
        room = sum(inf if size is None else size for size in sizes)
        if size > room:
            name = "any device" if chosen is None else f"devices of type {chosen!r} only"
            raise InfeasibleError(
                f"the ops that may run on {name} need {bytes_text(size, int(room))} in all; the memory there is "
                f"{bytes_text(int(room), size)} in all; use a larger topology, a smaller batch, or allow more devices"
            )
    # If routes join all devices, every part of the graph may be anywhere.
    for part in instance.parts if len(set(instance.component)) > 1 else ():
        _require_routes(problem, instance, part)


def _require_common_device(problem: Problem, instance: Instance, ops: Sequence[int]) -> None:
    if instance.allowed[ops[0]]:
        return
    pinned = [op for op in ops if len(problem.allowed[op]) < problem.device_count]
    uses = "; ".join(devices_text(problem, op, problem.allowed[op]) for op in pinned[:3])
    raise InfeasibleError(
        f"colocation group {_group_text(problem, ops)} has no device that all its ops may use: {uses}; change "
        "their 'devices' or take the group apart"
    )


def _require_room(problem: Problem, instance: Instance, ops: Sequence[int], live: bool) -> None:
    """Eq. 13 for the ops of a block: some device can hold them, under ``memory: live`` also while each of them runs."""
    sizes = ((device, problem.capacity_bytes[device]) for device in instance.allowed[ops[0]])
    rooms = {device: inf if size is None else size for device, size in sizes}
    roomiest, size = max(rooms, key=rooms.__getitem__), instance.footprint[instance.block[ops[0]]]
    when = ""
    if size <= rooms[roomiest]:
        running = (op for op in ops if live and op < problem.op_count)
        tight = [op for op in running if all(working_set(problem, op, here) > room for here, room in rooms.items())]
        if not tight:
            return
        ops, size = tight[:1], working_set(problem, tight[0], roomiest)
        when = " while it runs: weights, gradient and state, inputs, output and workspace"
    owner, way_out = op_text(problem, ops[0]), "a smaller batch, or split the op"
    if len(ops) > 1:
        owner, way_out = f"colocation group {_group_text(problem, ops)} of {len(ops)} ops", "or take the group apart"
    capacity_bytes = int(rooms[roomiest])
    pinned = "" if len(rooms) == problem.device_count else " that it may use"
    raise InfeasibleError(
        f"{owner} needs {bytes_text(size, capacity_bytes)}{when}; the largest device{pinned} "
        f"{problem.topology.devices[roomiest].id!r} has {bytes_text(capacity_bytes, size)}; use a larger topology, "
        f"{way_out}"
    )


def _require_routes(problem: Problem, instance: Instance, part: Sequence[int]) -> None:
    """Eq. 8 along chains of edges: a weakly connected part of the graph needs one connected part of the machine."""
    heads = [instance.members[block][0] for block in part]
    reach = {op: {instance.component[device] for device in instance.allowed[op]} for op in heads}
    if set.intersection(*reach.values()):
        return
    narrow = sorted(heads, key=lambda op: len(reach[op]))
    first, second = narrow[0], next((op for op in narrow if not reach[op] & reach[narrow[0]]), narrow[1])
    uses = " and ".join(devices_text(problem, op, instance.allowed[op]) for op in (first, second))
    raise InfeasibleError(
        f"{uses}; they must communicate, but no route joins these devices; add a link or change the ops' 'devices'"
    )


_SECONDS = 2.0
"""Time limit per omitted family of constraints while a user waits for the explanation. A guess."""


def require_placement(problem: Problem, seconds: float) -> list[int] | None:
    """[op] → device of a placement that obeys all rules but time; None on timeout, InfeasibleError if none exists."""
    decided, placement = find_placement(problem, seconds)
    if decided and placement is None:
        raise explain_infeasible(problem)
    return placement


def explain_infeasible(problem: Problem) -> InfeasibleError:
    """The error for a problem proved infeasible; it names the rules without which a placement exists."""
    if problem.options.memory == "live" and find_placement(problem, _SECONDS, without=(WORKING,))[1] is not None:
        return explain_overflow(problem)
    blamed = [family for family in FAMILIES if find_placement(problem, _SECONDS, without=(family,))[1] is not None]
    ops = f"{problem.op_count} ops with {format_bytes(sum(problem.footprint_bytes))} in all"
    groups = ", ".join(_group_text(problem, group) for group in problem.groups[:5])
    reasons = {
        "memory": f"no placement of {ops} fits: {sizes_text(problem)}; use a larger topology or split the largest ops",
        "pins": "every placement breaks the 'devices' that some op may use; allow more devices",
        "colocation": f"every placement splits a colocation group: {groups}; make the groups smaller",
        "routes": "every placement puts communicating ops on devices that no route joins; add a link",
    }
    if not blamed:
        return InfeasibleError(
            f"no plan can exist for {ops}: memory, pins, groups and missing links conflict "
            f"({sizes_text(problem)}); relax two of them"
        )
    return InfeasibleError("; or: ".join(reasons[family] for family in blamed))


def explain_overflow(problem: Problem) -> InfeasibleError:
    """The error for a problem with placements, but no schedule that fits in memory at all times."""
    return InfeasibleError(
        f"no schedule fits in memory at all times: weights, gradients and state take "
        f"{format_bytes(sum(problem.resident_bytes))} in all, {sizes_text(problem)}; use a larger topology or a "
        "smaller batch"
    )


def shortage(problem: Problem) -> str | None:
    """A text with the bytes needed and available, for a problem without a plan; None if memory cannot bind."""
    if not build_instance(problem).memory_binds and not may_bind(problem):
        return None
    return f"weights and other data kept take {format_bytes(sum(problem.footprint_bytes))}, {sizes_text(problem)}"
