"""The memory that a problem needs at least, whatever the placement."""

from collections.abc import Iterator

from dlplacer.problem.live_memory import input_bytes
from dlplacer.problem.problem import Problem


def demands_by_type(problem: Problem) -> Iterator[tuple[str, int, int]]:
    """(devices, bytes that must be there, bytes that they have): all, and each type with what runs on it only."""
    type_of = [device.type for device in problem.topology.devices]
    for chosen in (None, *dict.fromkeys(type_of)):
        here = [device for device, name in enumerate(type_of) if chosen in (None, name)]
        sizes = [size for device in here if (size := problem.capacity_bytes[device]) is not None]
        if len(sizes) == len(here):
            only = [op for op, allowed in enumerate(problem.allowed) if allowed and set(allowed) <= set(here)]
            name = "devices" if chosen is None else f"devices of type {chosen!r}"
            yield name, sum(problem.footprint_bytes[op] for op in only), sum(sizes)


def working_set(problem: Problem, op: int, device: int) -> int:
    """The least bytes on a device while an op runs there; its inputs count as the smaller of copy and original."""
    group = problem.group_of[op]
    members = (op,) if group is None else problem.groups[group]
    size = sum(problem.resident_bytes[member] for member in members)
    if not problem.duration[op][device]:
        return size
    inputs = sum(min(original, copies) for original, copies in input_bytes(problem, op).values())
    return size + inputs + problem.output_bytes[op] + problem.workspace_bytes[op]


def most_working_sets(problem: Problem) -> list[int]:
    """[op] → what `working_set` is at most on any device, in a tenth of its time."""
    inputs = [0] * problem.op_count
    for edge, arc in zip(problem.graph.edges, problem.arcs, strict=True):
        inputs[arc.target] += edge.bytes
    resident = list(problem.resident_bytes)
    for members in problem.groups:
        size = sum(problem.resident_bytes[member] for member in members)
        for member in members:
            resident[member] = size
    rows = zip(resident, inputs, problem.output_bytes, problem.workspace_bytes, strict=True)
    return list(map(sum, rows))


def largest_working_set(problem: Problem) -> tuple[int, int, int]:
    """The op that needs most, the largest device that it may use, and the bytes."""

    def roomiest(op: int) -> int:
        return max(problem.allowed[op], key=lambda device: problem.capacity_bytes[device] or float("inf"))

    sizes = {op: working_set(problem, op, roomiest(op)) for op in range(problem.op_count) if problem.allowed[op]}
    op = max(sizes, key=lambda op: sizes[op])
    return op, roomiest(op), sizes[op]
