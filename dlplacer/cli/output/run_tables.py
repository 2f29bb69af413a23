"""What a run predicted and measured, as tables on a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlplacer.cli.output.tables import new_table, print_table
from dlplacer.core.units import format_seconds

if TYPE_CHECKING:
    from dlplacer.measure.run_report import DeviceUse, Offender, RunReport

_DRAWS = {
    "none": "",
    "same": " (with the same random draws)",
    "different": " (random ops drew other numbers: says nothing)",
}


def print_run(report: "RunReport") -> None:
    """Step time, devices and the worst predicted ops, predicted and measured side by side."""
    print(report.conclusion)
    several = report.ranks > 1
    replicas = f"{report.replicas} replica{'' if report.replicas == 1 else 's'}, {report.ranks} ranks"
    table = new_table(replicas if several else "", "predicted", "measured")
    table.add_row("step time", format_seconds(report.predicted_s), format_seconds(report.measured_s))
    table.add_row("step time, as planned earlier", format_seconds(report.plan_makespan_s), "")
    if report.measured_speedup is not None:
        speedup = "samples per second" if several else "speedup over plain PyTorch on one device"
        table.add_row(speedup, f"{report.predicted_speedup:.3f}x", f"{report.measured_speedup:.3f}x")
    for name, seconds in (
        ("one device, plain PyTorch", report.baseline_s),
        ("one device, torch.compile", report.compiled_s),
        ("all cores, plain PyTorch", report.eager_all_cores_s),
    ):
        if seconds is not None:
            table.add_row(name, "", format_seconds(seconds))
    table.add_row("error of the prediction", "", f"{100 * report.prediction_error:.2f} %")
    if report.runtime_factor is not None and report.noise is not None:
        table.add_row("runtime factor: placed on one device ÷ plain PyTorch", "", f"{report.runtime_factor:.3f}")
        table.add_row("contention factor: ops side by side ÷ alone", "", f"{report.contention_factor:.3f}")
        table.add_row("noise: quartiles of plain PyTorch, apart", "", f"{100 * report.noise:.1f} %")
    if report.max_abs_error is not None:
        other = "one process" if several else "PyTorch"
        table.add_row(f"largest difference to {other}", "", f"{report.max_abs_error:.3g}{_DRAWS[report.draws]}")
    if report.full_batch_error is not None:
        table.add_row("largest difference to the full batch", "", f"{report.full_batch_error:.3g}")
    if report.buckets:
        line = f"{format_seconds(report.all_reduce_latency_s)} + {report.all_reduce_s_per_byte * 1e9:.3g} s/GB"
        table.add_row(f"{report.buckets} all-reduces of the gradients", "", line)
    print_table(table)
    for reason in report.left_out:
        print(f"not timed: {reason}")
    _print_devices(report.use)
    _print_offenders(report.offenders)


def _print_devices(uses: "Sequence[DeviceUse]") -> None:
    table = new_table("device", "busy, predicted", "busy, measured", "idle, predicted", "idle, measured")
    for use in uses:
        seconds = (use.predicted_busy_s, use.measured_busy_s, use.predicted_idle_s, use.measured_idle_s)
        table.add_row(use.device, *map(format_seconds, seconds))
    print_table(table)


def _print_offenders(offenders: "Sequence[Offender]") -> None:
    table = new_table("predicted worst", "module", "device", "predicted", "measured", "difference", names=3)
    for offender in offenders:
        sign = "+" if offender.difference_s >= 0 else "-"
        table.add_row(
            offender.op,
            offender.module or "",
            offender.device,
            format_seconds(offender.predicted_s),
            format_seconds(offender.measured_s),
            sign + format_seconds(abs(offender.difference_s)),
        )
    print_table(table)
