"""Names in messages of the ops, groups and devices of a problem, and their sizes."""

from collections.abc import Iterable, Sequence

from dlplacer.core.units import format_bytes
from dlplacer.problem.problem import Problem


def op_text(problem: Problem, op: int) -> str:
    return repr(problem.graph.ops[op].id)


def devices_text(problem: Problem, devices: Iterable[int]) -> str:
    return ", ".join(repr(problem.topology.devices[device].id) for device in devices)


def capacities_text(problem: Problem, devices: Iterable[int]) -> str:
    """Sizes with device types, equal ones together: ``2 × 8 GiB (type 'gpu'), unlimited (type 'cpu')``."""
    counts: dict[tuple[str, str], int] = {}
    for device in devices:
        capacity = problem.capacity_bytes[device]
        text = "unlimited" if capacity is None else format_bytes(capacity)
        kind = text, problem.topology.devices[device].type
        counts[kind] = counts.get(kind, 0) + 1
    return ", ".join(
        f"{f'{count} × ' if count > 1 else ''}{text} (type {name!r})" for (text, name), count in counts.items()
    )


def group_text(problem: Problem, ops: Sequence[int]) -> str:
    return f"colocation group {_name_of_group(problem, ops)}"


def groups_text(problem: Problem) -> str:
    return ", ".join(_name_of_group(problem, group) for group in problem.groups[:5])


def _name_of_group(problem: Problem, ops: Sequence[int]) -> str:
    """The ops' name for their group; one that the constraints make is called by two of its ops."""
    names = dict.fromkeys(problem.graph.ops[op].colocate for op in ops)
    if len(names) == 1 and None not in names:
        return repr(next(iter(names)))
    return "({})".format(", ".join([op_text(problem, op) for op in ops[:2]] + ["…"] * (len(ops) > 2)))


def bytes_text(size: int, other: int) -> str:
    """The size in a readable unit, or in bytes where the readable texts of both would be the same."""
    text = format_bytes(size)
    return f"{size} bytes" if text == format_bytes(other) else text
