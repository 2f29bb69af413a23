"""What a run predicted and measured, as tables on a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlplacer.cli.output.tables import new_table, print_pairs, print_table
from dlplacer.core.units import format_seconds

if TYPE_CHECKING:
    from dlplacer.measure.run_report import DeviceUse, Offender, RunReport


def print_run(report: "RunReport") -> None:
    """What a run says, its figures, the use of devices, and the worst predicted ops."""
    from dlplacer.measure.run_report import shown_figures

    print(report.conclusion)
    print_pairs(shown_figures(report))
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
