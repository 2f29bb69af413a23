"""What a run measured against what was predicted."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dlplacer.core.abilities import Shown
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_seconds
from dlplacer.report.page.page import run_page
from dlplacer.report.summary import busy_s

if TYPE_CHECKING:
    import pandas

Quartiles = tuple[float, float]
"""First and third."""

_LISTED = 10
_DIFFERENCES = {"max_abs_error", "full_batch_error"}


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Seconds of a step in which a device computes, and in which it does not."""

    device: str
    predicted_busy_s: float
    predicted_idle_s: float
    measured_busy_s: float
    measured_idle_s: float


@dataclass(frozen=True, slots=True)
class Offender:
    """An op whose measured time differs from the predicted one."""

    op: str
    kind: str
    module: str | None
    device: str
    predicted_s: float
    measured_s: float

    @property
    def difference_s(self) -> float:
        """Measured less predicted."""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True)
class Figures:
    """What a run found of one plan, in seconds per step; docs/reference/printed.md says what each field is.

    Attributes
    ----------
    predicted_s, measured_s
        The plan replayed under costs of the same run, `RunReport.host_s` added; median of the placed steps, each on its
        slowest process.
    predicted_speedup, measured_speedup
        Replicas × `RunReport.baseline_s` ÷ each: they differ by the error of the prediction alone. These and what else
        needs plain PyTorch are None where it fits on no device.
    max_abs_error
        Largest difference of the loss and of any gradient to plain PyTorch in one process, which takes the mean over
        the replicas' parts; with an optimizer, of the loss and of any updated parameter.
    """

    predicted_s: float
    measured_s: float
    plan_makespan_s: float
    predicted_speedup: float | None = None
    measured_speedup: float | None = None
    prediction_error: float = 0.0
    max_abs_error: float | None = None
    measured_quartiles_s: Quartiles | None = None
    runtime_factor: float | None = None
    contention_factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class RunReport(Figures):
    """What a run measured against what was predicted; docs/reference/printed.md says what each field is.

    `use` is per device of the plan; the measured figures come from recorded steps. Over ranks they are of the first
    replica, whose network is busy while it waits for the others. `beside`: name → figures of another plan of the same
    job, whose steps alternated with those of this one.
    """

    devices: tuple[str, ...]
    steps: int
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
    draws: str = "none"
    host_s: float = 0.0
    dispatch_s: float = 0.0
    use: tuple[DeviceUse, ...] = ()
    offenders: tuple[Offender, ...] = ()
    beside: Mapping[str, Figures] = field(default_factory=dict)
    replicas: int = 1
    ranks: int = 1
    full_batch_error: float | None = None
    all_reduce_latency_s: float = 0.0
    all_reduce_s_per_byte: float = 0.0
    buckets: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer run --json`` prints, in which a difference that is no number is a text."""
        found = asdict(self)
        for figures in (found, *found["beside"].values()):
            for name in _DIFFERENCES & figures.keys():
                if figures[name] is not None and not math.isfinite(figures[name]):
                    figures[name] = str(figures[name])
        return found


@dataclass(frozen=True, repr=False)
class Run(Shown):
    """A report, the plan as predicted, and a recorded step of median length; over ranks of the first replica."""

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


def _times(value: float) -> str:
    return f"{value:.3f}x"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


# Field of a report → its name and how it is written; a field that is None, empty or of one process is left out.
_SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "predicted_s": ("step, predicted", format_seconds),
    "measured_s": ("step, measured", format_seconds),
    "prediction_error": ("error of the prediction", _percent),
    "plan_makespan_s": ("step, as planned earlier", format_seconds),
    "measured_speedup": ("speedup over plain PyTorch on one device", _times),
    "predicted_speedup": ("speedup, predicted", _times),
    "baseline_s": ("plain PyTorch, one device", format_seconds),
    "compiled_s": ("torch.compile, one device", format_seconds),
    "eager_all_cores_s": ("plain PyTorch, all cores", format_seconds),
    "runtime_factor": ("runtime factor: placed on one device ÷ plain PyTorch", _times),
    "contention_factor": ("contention factor: ops side by side ÷ alone", _times),
    "noise": ("noise: quartiles of plain PyTorch, apart", _percent),
    "host_s": ("host, before and after the devices", format_seconds),
    "max_abs_error": ("largest difference to plain PyTorch", "{:.3g}".format),
    "full_batch_error": ("largest difference to the full batch", "{:.3g}".format),
    "left_out": ("not timed", "; ".join),
    "steps": ("steps timed", str),
    "devices": ("devices", ", ".join),
}
_DRAWN = {
    "same": ("random draws", "the same as plain PyTorch's"),
    "different": ("random draws", "others than plain PyTorch's: the difference says nothing"),
}


def shown_figures(report: RunReport) -> list[tuple[str, str]]:
    """Name and value of the figures of a run for a reader, those first by which it is judged."""
    known = ((*shown, getattr(report, key)) for key, shown in _SHOWN.items())
    rows = [(name, write(value)) for name, write, value in known if value not in (None, ())]
    if report.draws in _DRAWN:
        rows.append(_DRAWN[report.draws])
    if report.ranks > 1:
        rows.append(("replicas, processes", f"{report.replicas}, {report.ranks}"))
    if report.buckets:
        line = f"{format_seconds(report.all_reduce_latency_s)} + {report.all_reduce_s_per_byte * 1e9:.3g} s/GB"
        rows.append((f"{report.buckets} all-reduces of the gradients", line))
    return rows


def device_uses(predicted: Plan, measured: Plan) -> tuple[DeviceUse, ...]:
    """Busy and idle seconds of every device, as predicted and as measured."""
    ours, theirs = busy_s(predicted), busy_s(measured)
    return tuple(
        DeviceUse(name, busy, predicted.makespan_s - busy, theirs[name], max(0.0, measured.makespan_s - theirs[name]))
        for name, busy in ours.items()
    )


def worst_offenders(predicted: Plan, op_times_s: Mapping[str, float], count: int = _LISTED) -> tuple[Offender, ...]:
    """The ops whose measured times are furthest from their predicted ones, whether longer or shorter."""
    found = []
    for entry in predicted.ops:
        if entry.op in op_times_s:
            op, predicted_s = predicted.graph.op(entry.op), entry.end_s - entry.start_s
            found.append(Offender(op.id, op.kind, op.module, entry.device, predicted_s, op_times_s[op.id]))
    return tuple(sorted(found, key=lambda offender: -abs(offender.difference_s))[:count])


def page_of_run(run: Run) -> str:
    """One HTML page about a run: its predicted and its recorded step on one axis, and its figures."""
    return run_page(run.predicted, run.measured, shown_figures(run.report), run.report.conclusion)
