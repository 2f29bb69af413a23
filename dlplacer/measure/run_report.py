"""What a run measured against what was predicted."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dlplacer.core.abilities import Shown
from dlplacer.core.plan import Plan
from dlplacer.core.units import format_seconds
from dlplacer.report.page.summary import busy_s

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
    """What a run found of one plan, in seconds per step; None where plain PyTorch fits on no device.

    Attributes
    ----------
    predicted_s
        The plan replayed under links, all-reduces and op times that all processes measure in the same run, alternating
        with its steps. `RunReport.host_s` is a part of it.
    measured_s
        Median of the placed steps, each on its slowest process.
    plan_makespan_s
        What the plan itself promised, under the costs that it was made with.
    predicted_speedup, measured_speedup
        Samples per second over those of plain PyTorch on one device: replicas × `RunReport.baseline_s` ÷ predicted, and
        ÷ measured. They differ by the error of the prediction alone.
    prediction_error
        |predicted − measured| ÷ measured.
    max_abs_error
        Largest difference of the loss and of any gradient to plain PyTorch in one process, which takes the mean over
        the replicas' parts; with an optimizer, of the loss and of any updated parameter.
    measured_quartiles_s
        First and third quartile of the same steps.
    runtime_factor
        All ops of the plan, run by the runtime one device after another, ÷ plain PyTorch's step.
    contention_factor
        Op times while all used devices work ÷ alone; 1 for a plan on one device.
        It is the most that devices slow each other: a plan's ops are beside others for a part of their time only.
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
    """What a run measured against what was predicted.

    Attributes
    ----------
    baseline_s, eager_all_cores_s, compiled_s
        Plain PyTorch on one of the devices and one replica's batch (the mean of all processes); with all cores of the
        host; ``torch.compile`` on one device. Medians, each None where it was not timed.
    noise
        Third less first quartile of the repeated baseline, ÷ `baseline_s`: differences below it say nothing.
    left_out
        The baselines that were wanted and not timed, and why.
    draws
        ``none`` if no op is random; ``same`` if plain PyTorch drew the same numbers for `max_abs_error`; ``different``
        if it could not be made to, so that `max_abs_error` says nothing.
    host_s
        Seconds of the prediction before the devices start and after they end: inputs are bound, threads woken.
    dispatch_s
        Seconds in which the Python process issues an op, where it feeds the devices; 0 for CPU cores and over ranks.
    use
        Per device of the plan; the measured figures come from recorded steps. Over ranks they are of the first replica,
        whose network is busy while it waits for the others.
    offenders
        The ops whose measured time differs most from the predicted one, the worst first.
    beside
        Name → figures of another plan of the same job, whose steps alternated with those of this one; its speedups are
        over the same baseline.
    losses
        Cause → predicted seconds beyond an even share of the baseline on every device; see
        `dlplacer.measure.conclusion.losses_of`.
    full_batch_error
        As `max_abs_error`, to one process on the whole batch at once: larger where batch norm sees other batches. None
        with one replica, where the replicas got one and the same batch, and where ops are random.
    all_reduce_latency_s, all_reduce_s_per_byte
        Line of the measured all-reduce; 0 with one replica.
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
            op, measured_s = self.measured.graph.op(entry.op), entry.end_s - entry.start_s
            predicted_s = predicted.get(entry.op)
            rows.append(
                {
                    "op": entry.op,
                    "kind": op.kind,
                    "module": op.module,
                    "device": entry.device,
                    "start_s": entry.start_s,
                    "predicted_s": predicted_s,
                    "measured_s": measured_s,
                    "difference_s": None if predicted_s is None else measured_s - predicted_s,
                }
            )
        return pandas.DataFrame(rows)


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
