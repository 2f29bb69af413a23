"""The answer of the hybrid planner as a table on a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlplacer.cli.output.tables import new_table, print_pairs, print_table
from dlplacer.core.result import FITS_NONE
from dlplacer.core.units import format_seconds

if TYPE_CHECKING:
    from dlplacer.planning.hybrid.hybrid_plan import BestOfDevices, HybridPlan

_MOST_ROWS = 24


def print_hybrid(plan: "HybridPlan", notes: Sequence[tuple[str, str]] = ()) -> None:
    """A row per budget, then crossover points, the best strategy and notes in words."""
    table = new_table(
        "devices",
        "best strategy",
        "idle",
        "step",
        "epochs",
        "speedup",
        "data parallel",
        "hybrid",
        "vs same",
        "vs best DP",
        names=2,
        title=plan.name,
    )
    for each in rows(plan):
        best = each.best
        if best is None:
            table.add_row(str(each.devices), *["-"] * 9)
            continue
        table.add_row(
            str(each.devices),
            best.label,
            str(each.idle),
            format_seconds(best.step.step_s),
            f"{best.epochs:.4g}",
            _times(plan.speedup(best)),
            _times(plan.speedup(each.best_data_parallel)),
            _times(plan.speedup(each.best_hybrid)),
            _times(each.against_same_devices, 3),
            _times(each.against_best_data_parallel, 3),
        )
    print_table(table)
    over = f"the model {FITS_NONE}" if plan.reference_s is None else "time to converge over one device, others may idle"
    print(f"speedup: {over}; vs same: hybrid over data parallelism on as many devices;")
    print("vs best DP: best strategy over the best data parallelism on at most as many devices")
    steps = [f"{each.workers} x {each.degree} from {_devices(each.devices)}" for each in plan.crossovers]
    print_pairs(
        [
            ("hybrid first wins", "nowhere" if plan.first_win is None else f"at {_devices(plan.first_win)}"),
            ("best strategy", f"{'; '.join(steps[:8])}{'; ...' if len(steps) > 8 else ''}"),
            *_best(plan),
            *notes,
        ]
    )


def rows(plan: "HybridPlan") -> "list[BestOfDevices]":
    """All budgets if they are few; else powers of two, the last, and the first at which a hybrid wins."""
    count = len(plan.budgets)
    if count <= _MOST_ROWS:
        return list(plan.budgets)
    shown = {1 << power for power in range(count.bit_length()) if 1 << power <= count} | {count}
    if plan.first_win is not None:
        shown.add(plan.first_win)
    return [plan.at(devices) for devices in sorted(shown)]


def _best(plan: "HybridPlan") -> list[tuple[str, str]]:
    best = plan.budgets[-1].best
    if best is None:
        return []
    step = best.step
    messages = f", gradients in {step.groups} messages" if step.groups > 1 else ""
    algorithm = f", {step.algorithm} all-reduce" if step.algorithm else ""
    workers = "1 worker" if best.workers == 1 else f"{best.workers} workers"
    used = best.workers * best.split.used + step.servers if best.split.used else best.devices
    text = (
        f"uses {_devices(used)}: {workers} of {best.degree} ({best.split.method}, {best.split.speedup:.3f}x), "
        f"codec {step.codec}{algorithm}"
        f"{messages}, step {format_seconds(step.step_s)} of which {format_seconds(step.exposed_s)} exposed exchange"
    )
    rows = [(f"at {_devices(plan.budgets[-1].devices)}", text)]
    if plan.mini_batches is not None:
        rows.append(("time to converge", format_seconds(best.time_s(plan.mini_batches))))
    return rows


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def _times(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}x"
