"""Results as tables on a terminal."""

from collections import Counter
from typing import TYPE_CHECKING

from dlplacer.core.result import FITS_NONE
from dlplacer.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from dlplacer.core.plan import Plan
    from dlplacer.core.result import Result

_WIDTH = 150


def print_result(result: "Result") -> None:
    """Status, makespan, bound, gap and speedup of a solve."""
    plan = result.plan
    rows = [
        ("status", plan.status),
        ("makespan", format_seconds(plan.makespan_s)),
        ("lower bound", format_seconds(plan.lower_bound_s)),
        ("gap", f"{100 * plan.gap:.2f} %"),
        ("best single device", FITS_NONE),
        ("method", f"{plan.method}, {plan.solve_s:.1f} s"),
    ]
    if result.single_device_s is not None:
        faster = "-" if result.speedup is None else f"{result.speedup:.3f}x"
        rows[4:5] = [("best single device", format_seconds(result.single_device_s)), ("speedup", faster)]
    if plan.rounding_s:
        rows.insert(4, ("rounding", format_seconds(plan.rounding_s)))
    print_pairs(rows)


def print_plan(plan: "Plan") -> None:
    """The plan's figures, then every device's share; a file is not believed to have proved its bound."""
    print_pairs(
        [
            ("graph", f"{plan.graph.name or 'unnamed'}: {len(plan.graph.ops)} ops, {len(plan.graph.edges)} edges"),
            ("topology", f"{plan.topology.name or 'unnamed'}: {len(plan.topology.devices)} devices"),
            ("options", ", ".join(f"{name} {value}" for name, value in plan.options.to_dict().items())),
            *_constraints(plan),
            ("makespan", format_seconds(plan.makespan_s)),
            ("as the file states", stated(plan)),
            ("method", f"{plan.method}, {plan.solve_s:.1f} s"),
        ]
    )
    table = new_table("device", "type", "ops", "busy", "idle", "memory", "capacity", "received", names=2)
    for device in plan.topology.devices:
        mine = [entry for entry in plan.ops if entry.device == device.id]
        busy_s = sum(entry.end_s - entry.start_s for entry in mine)
        memory = plan.memory.get(device.id)
        received = sum(transfer.bytes for transfer in plan.transfers if transfer.target == device.id)
        table.add_row(
            device.id,
            device.type,
            str(len(mine)),
            format_seconds(busy_s),
            format_seconds(max(0.0, plan.makespan_s - busy_s)),
            "-" if memory is None else format_bytes(memory.peak_bytes),
            "unlimited" if device.memory_bytes is None else format_bytes(device.memory_bytes),
            format_bytes(received),
        )
    print_table(table)


def stated(plan: "Plan") -> str:
    """The status, bound and gap of a plan from a file, which nothing has proved since."""
    return f"{plan.status}, lower bound {format_seconds(plan.lower_bound_s)}, gap {100 * plan.gap:.2f} %"


def _constraints(plan: "Plan") -> list[tuple[str, str]]:
    held = plan.graph.constraints
    rows = []
    if held.pins:
        counts = Counter(held.pins.values())
        rows.append(("pins", ", ".join(f"{_ops(count)} on {device}" for device, count in counts.items())))
    if held.colocate:
        rows.append(("held together", ", ".join(_ops(len(ops)) for ops in held.colocate)))
    return rows


def _ops(count: int) -> str:
    return f"{count} op{'' if count == 1 else 's'}"


def print_pairs(rows: list[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def new_table(*heads: str, names: int = 1, title: str = "") -> "Table":
    """An empty table whose first `names` columns are names, set flush left; the others are figures, set flush right."""
    from rich.table import Table

    table = Table(title=title or None)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < names else "right")
    return table


def print_table(*tables: "Table") -> None:
    """Print tables as wide as the terminal, or where there is none as a file can hold; names are never markup."""
    from rich.console import Console

    width = None if Console().is_terminal else _WIDTH
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    for table in tables:
        console.print(table)
