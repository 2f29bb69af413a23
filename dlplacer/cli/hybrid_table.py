"""The answer of the hybrid planner as a table on a terminal."""

from typing import TYPE_CHECKING

from dlplacer.units import format_seconds

if TYPE_CHECKING:
    from dlplacer.scaling.hybrid_plan import Budget, HybridPlan

_MOST_ROWS = 24


def print_hybrid(plan: "HybridPlan") -> None:
    """A row per budget, then crossover points and the best strategy in words."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
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
    )
    table.title = plan.name
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
            _times(plan.speedup(each.data_parallel)),
            _times(plan.speedup(each.hybrid)),
            _times(each.against_same_devices, 3),
            _times(each.against_best_data_parallel, 3),
        )
    Console(width=None if Console().is_terminal else 150).print(table)
    print("speedup: time to converge over one device; vs same: hybrid over data parallelism on as many devices;")
    print("vs best DP: best strategy over the best data parallelism on at most as many devices")
    print(f"hybrid first wins   {'nowhere' if plan.first_win is None else f'at {plan.first_win} devices'}")
    steps = [f"{each.workers} x {each.degree} from {each.devices} devices" for each in plan.crossovers]
    print(f"best strategy       {'; '.join(steps[:8])}{'; ...' if len(steps) > 8 else ''}")
    _print_best(plan)


def rows(plan: "HybridPlan") -> "list[Budget]":
    """All budgets if they are few; else powers of two, the last, and the first at which a hybrid wins."""
    count = len(plan.budgets)
    if count <= _MOST_ROWS:
        return list(plan.budgets)
    shown = {1 << power for power in range(count.bit_length()) if 1 << power <= count} | {count}
    if plan.first_win is not None:
        shown.add(plan.first_win)
    return [plan.at(devices) for devices in sorted(shown)]


def _print_best(plan: "HybridPlan") -> None:
    best = plan.budgets[-1].best
    if best is None:
        return
    step = best.step
    messages = f", gradients in {step.groups} messages" if step.groups > 1 else ""
    algorithm = f", {step.algorithm} all-reduce" if step.algorithm else ""
    print(
        f"at {plan.budgets[-1].devices} devices      {best.workers} workers of {best.degree} "
        f"({best.split.method}, {best.split.speedup:.3f}x), codec {step.codec}{algorithm}{messages}, step "
        f"{format_seconds(step.step_s)} of which {format_seconds(step.exposed_s)} exposed exchange"
    )
    if plan.mini_batches is not None:
        print(f"time to converge    {format_seconds(best.time_s(plan.mini_batches))}")


def _times(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}x"
