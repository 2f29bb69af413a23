"""Measurements of a run, its prediction, and one sentence that explains the gain or loss."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dlplacer.core.abilities import Shown
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_seconds
from dlplacer.machines.cores import usable_cores
from dlplacer.report.page.page import run_page

if TYPE_CHECKING:
    import pandas

NOISY = 0.1
"""Noise above which a machine is reported as noisy; quiet machines stay below 5 %."""
_NO_LOSS = 0.03
Quartiles = tuple[float, float]


@dataclass(frozen=True)
class RunReport:
    """Measurements and prediction of a run, in seconds per step; docs/reference/printed.md explains each field.

    Attributes
    ----------
    predicted_s, measured_s
        The makespan of the plan replayed under costs of the same run, plus `host_s`; and the median time of the placed
        steps, each on its slowest process.
    predicted_speedup, measured_speedup
        Replicas × `baseline_s` ÷ `predicted_s` or `measured_s`. They differ only by the error of the prediction. Both,
        like all fields that need plain PyTorch, are None if the model fits on no single device.
    max_abs_error
        Largest difference from plain PyTorch in the loss and gradients (with an optimizer, updated parameters), or in
        the tensors of inference. Plain PyTorch averages over the replicas' parts. None for random steps.
    largest_number
        The largest absolute value among the compared numbers of plain PyTorch.
    """

    predicted_s: float
    measured_s: float
    plan_makespan_s: float
    devices: tuple[str, ...]
    steps: int
    predicted_speedup: float | None = None
    measured_speedup: float | None = None
    prediction_error: float = 0.0
    max_abs_error: float | None = None
    largest_number: float | None = None
    measured_quartiles_s: Quartiles | None = None
    runtime_factor: float | None = None
    contention_factor: float = 1.0
    step: str = "joint"
    segments: str = "eager"
    baseline_s: float | None = None
    baseline_quartiles_s: Quartiles | None = None
    eager_all_cores_s: float | None = None
    eager_all_cores_quartiles_s: Quartiles | None = None
    compiled_s: float | None = None
    compiled_quartiles_s: Quartiles | None = None
    left_out: tuple[str, ...] = ()
    noise: float | None = None
    conclusion: str = ""
    losses: Mapping[str, float] = field(default_factory=dict)
    host_s: float = 0.0
    dispatch_s: float = 0.0
    replicas: int = 1
    ranks: int = 1
    all_reduce_latency_s: float = 0.0
    all_reduce_s_per_byte: float = 0.0
    buckets: int = 0

    @property
    def plan_noise(self) -> float:
        """Interquartile range of the plan's steps ÷ their median."""
        low_s, high_s = self.measured_quartiles_s or (0.0, 0.0)
        return (high_s - low_s) / self.measured_s

    @property
    def spread(self) -> float:
        """The share of the step time below which a difference from plain PyTorch is noise."""
        return max(self.noise or 0.0, self.plan_noise)

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer run --json`` prints; a difference that is not finite becomes a string."""
        found = asdict(self)
        for name in ("max_abs_error", "largest_number"):
            if found[name] is not None and not math.isfinite(found[name]):
                found[name] = str(found[name])
        return found


def losses_of(
    baseline_s: float, alone_s: float, busy_s: float, makespan_s: float, host_s: float, share: float
) -> dict[str, float]:
    """Cause → its part of the seconds by which a predicted step exceeds `share` × baseline.

    Negative seconds are a gain. With `share` = replicas ÷ devices:

    - runtime: without contention, the placed ops take longer than plain PyTorch's own step;
    - contention: ops take longer while other devices work;
    - waiting: devices wait for tensors or for each other, or have no work left;
    - host: time before the devices start, and after they end.
    """
    return {
        "runtime": share * (alone_s - baseline_s),
        "contention": share * (busy_s - alone_s),
        "waiting": makespan_s - share * busy_s,
        "host": host_s,
    }


def conclusion(report: RunReport, devices: int) -> str:
    """A sentence that reports a faster rival, the plan's speedup on `devices` devices, its largest loss, and noise.

    Rivals are plain PyTorch and torch.compile. A difference below the noise is reported as neither gain nor loss, with
    the advice to use one device.
    """
    parts = [_rival(report), _plan(report, devices), _reason(report, devices), _noise(report)]
    text = "; ".join(part for part in parts if part)
    return text[0].upper() + text[1:] + "."


def _rival(report: RunReport) -> str | None:
    """The fastest rival for the batch of all replicas, if it is faster than the plan."""
    cores, alone_s = len(usable_cores()), report.baseline_s
    rivals = {
        "plain PyTorch on one device": None if alone_s is None else report.replicas * alone_s,
        f"plain PyTorch with {cores} threads": report.eager_all_cores_s if cores > 1 else None,
        "torch.compile on one device": report.compiled_s,
    }
    known = ((seconds, how) for how, seconds in rivals.items() if seconds is not None)
    seconds, how = min(known, default=(report.measured_s, ""))
    if seconds >= report.measured_s:
        return None
    times = f"{format_seconds(seconds)} per step against {format_seconds(report.measured_s)} for the plan"
    if report.measured_s - seconds <= report.spread * seconds:
        return f"{how} is faster by less than the noise of {100 * report.spread:.0f} %: {times}"
    return f"{how} is {report.measured_s / seconds:.2f}x as fast: {times}"


def _plan(report: RunReport, devices: int) -> str:
    where = "on one device" if devices == 1 else f"on {devices} devices"
    speedup = report.measured_speedup
    if speedup is None:
        return f"the plan {where} takes {format_seconds(report.measured_s)} per step; the model fits on no single one"
    if abs(speedup - 1) <= report.spread:
        advice = "" if devices == 1 else ", so use one device"
        return (
            f"the plan {where} neither gains nor loses over plain PyTorch on one device: its {speedup:.2f}x is within "
            f"the noise of {100 * report.spread:.0f} %{advice}"
        )
    if speedup < 1:
        return f"the plan {where} loses: {speedup:.2f}x the speed of plain PyTorch on one device, so use one device"
    return f"the plan {where} gains: {speedup:.2f}x the speed of plain PyTorch on one device"


def _reason(report: RunReport, devices: int) -> str | None:
    """The largest cause of the loss, if the loss exceeds the noise."""
    if report.baseline_s is None:
        return None
    losses, ideal_s = report.losses, report.replicas * report.baseline_s / devices
    if sum(losses.values()) <= max(_NO_LOSS, report.spread) * ideal_s:
        return None if devices == 1 else f"that is what {devices} devices can give"
    cause = max(losses, key=lambda name: losses[name])
    lost_s = sum(seconds for seconds in losses.values() if seconds > 0)
    best = f"{devices}x" if devices > 1 else "plain PyTorch's speed"
    return f"most is lost to {_CAUSES[cause]} ({100 * losses[cause] / lost_s:.0f} % of the shortfall from {best})"


_CAUSES = {
    "runtime": "the runtime, whose ops cost more than those of plain PyTorch",
    "contention": "contention: ops take longer while the other devices work",
    "waiting": "idle devices, which wait for tensors and for each other",
    "host": "the host, before the devices start and after they end",
}


def _noise(report: RunReport) -> str | None:
    if (noise := report.noise or 0.0) > NOISY:
        return f"this machine is noisy: half of plain PyTorch's steps spread over {100 * noise:.0f} % of their length"
    if (noise := report.plan_noise) > NOISY:
        return f"the plan's steps are noisy: half of them spread over {100 * noise:.0f} % of their length"
    return None


@dataclass(frozen=True, repr=False)
class Run(Shown):
    """A report, the predicted plan, and the recorded step of median length; over ranks, the first replica's step."""

    report: RunReport
    predicted: Plan
    measured: Plan

    def __repr__(self) -> str:
        report, speedup = self.report, self.report.measured_speedup
        return (
            f"<Run on {', '.join(report.devices)}: predicted {format_seconds(report.predicted_s)}, measured "
            f"{format_seconds(report.measured_s)}, error {100 * report.prediction_error:.1f} %"
            + (">" if speedup is None else f", {speedup:.3f}x plain PyTorch on one device>")
        )

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer run --json`` prints."""
        return self.report.to_dict()

    def to_frame(self) -> "pandas.DataFrame":
        """A row per op of the measured step: device, predicted and measured seconds, and their difference."""
        import pandas

        predicted = {entry.op: entry.end_s - entry.start_s for entry in self.predicted.ops}
        rows = []
        for entry in sorted(self.measured.ops, key=lambda entry: entry.start_s):
            op, predicted_s = self.measured.graph.op(entry.op), predicted.get(entry.op)
            measured_s = entry.end_s - entry.start_s
            difference_s = None if predicted_s is None else measured_s - predicted_s
            rows.append((op.id, op.kind, op.module, entry.device, entry.start_s, predicted_s, measured_s, difference_s))
        names = "op", "kind", "module", "device", "start_s", "predicted_s", "measured_s", "difference_s"
        return pandas.DataFrame(rows, columns=list(names))


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


# Field of a report → its name and format; a field that is None or empty is left out.
_SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "predicted_s": ("step, predicted", format_seconds),
    "measured_s": ("step, measured", format_seconds),
    "prediction_error": ("error of the prediction", _percent),
    "plan_makespan_s": ("step, as planned earlier", format_seconds),
    "measured_speedup": ("speedup over plain PyTorch on one device", "{:.3f}x".format),
    "predicted_speedup": ("speedup, predicted", "{:.3f}x".format),
    "baseline_s": ("plain PyTorch, one device", format_seconds),
    "compiled_s": ("torch.compile, one device", format_seconds),
    "eager_all_cores_s": ("plain PyTorch, all cores", format_seconds),
    "runtime_factor": ("runtime factor: placed on one device ÷ plain PyTorch", "{:.3f}x".format),
    "contention_factor": ("contention factor: ops side by side ÷ alone", "{:.3f}x".format),
    "noise": ("noise: interquartile range of plain PyTorch", _percent),
    "host_s": ("host, before and after the devices", format_seconds),
    "left_out": ("not timed", "; ".join),
    "steps": ("steps timed", str),
    "devices": ("devices", ", ".join),
}


def shown_figures(report: RunReport) -> list[tuple[str, str]]:
    """The results of a run as (name, text) pairs, the decisive ones first."""
    known = ((*shown, getattr(report, key)) for key, shown in _SHOWN.items())
    rows = [(name, write(value)) for name, write, value in known if value not in (None, ())]
    if report.max_abs_error is not None:
        difference = _relative(report.max_abs_error, report.largest_number or 0.0)
        rows.append(("largest difference to plain PyTorch", difference))
    if report.ranks > 1:
        rows.append(("replicas, processes", f"{report.replicas}, {report.ranks}"))
    if report.buckets:
        line = f"{format_seconds(report.all_reduce_latency_s)} + {report.all_reduce_s_per_byte * 1e9:.3g} s/GB"
        rows.append((f"{report.buckets} all-reduces of the gradients", line))
    return rows


def _relative(difference: float, largest: float) -> str:
    """A difference and its share of the largest number, because 2.37 in a gradient of 1e9 is rounding."""
    share = difference / largest if largest and math.isfinite(largest) else math.nan
    return f"{difference:.3g}" + (f", {share:.2g} of the largest number" if difference and math.isfinite(share) else "")


def page_of_run(run: Run) -> str:
    """An HTML page of a run: the predicted and the recorded step on one axis, and the results."""
    return run_page(run.predicted, run.measured, shown_figures(run.report), run.report.conclusion)
