"""What a run measured, beside what was predicted."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dlplacer.core.plan import Plan

_LISTED = 10


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
class Beside:
    """What a run found of another plan, as the attributes of the same names in `RunReport`."""

    predicted_s: float
    measured_s: float
    predicted_speedup: float
    measured_speedup: float
    prediction_error: float
    max_abs_error: float
    plan_makespan_s: float


@dataclass(frozen=True)
class RunReport:
    """What a run measured: medians in seconds per step.

    Attributes
    ----------
    baseline_s
        Eager PyTorch on one of the devices, under the same conditions.
    eager_all_cores_s
        Plain PyTorch with all cores of the host; None where the devices are not CPU cores.
    predicted_s, predicted_speedup
        Replay of the plan under op times, links and handovers measured in the same run; serial op times ÷ predicted.
    measured_s, measured_speedup
        The placed step; baseline ÷ measured.
    prediction_error
        |predicted − measured| ÷ measured.
    max_abs_error
        Largest difference of the loss and of any gradient against plain PyTorch; with an optimizer, of the loss and of
        any updated parameter.
    draws
        ``none`` if no op is random; ``same`` if plain PyTorch drew the same numbers for `max_abs_error`; ``different``
        if it could not be made to, so that `max_abs_error` says nothing.
    plan_makespan_s
        What the plan itself promised, under the costs that it was made with.
    host_s
        Seconds of the prediction before the devices start and after they end: inputs are bound, threads woken.
    dispatch_s
        Seconds in which the Python process issues an op, where it feeds the devices; 0 for CPU cores.
    use
        Per device; the measured figures come from recorded steps.
    offenders
        The ops whose measured time differs most from the predicted one, the worst first.
    beside
        Name → figures of another plan of the same job, whose steps took turns with those of this one.
    """

    baseline_s: float
    eager_all_cores_s: float | None
    predicted_s: float
    measured_s: float
    predicted_speedup: float
    measured_speedup: float
    prediction_error: float
    max_abs_error: float
    draws: str
    step: str
    plan_makespan_s: float
    steps: int
    devices: tuple[str, ...]
    host_s: float
    dispatch_s: float
    use: tuple[DeviceUse, ...]
    offenders: tuple[Offender, ...]
    beside: Mapping[str, "Beside"] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer run --json`` prints."""
        return asdict(self)


def device_uses(predicted: Plan, measured: Plan) -> tuple[DeviceUse, ...]:
    """Busy and idle seconds of every device, as predicted and as measured."""
    ours, theirs = _busy_s(predicted), _busy_s(measured)
    return tuple(
        DeviceUse(
            device.id,
            ours[device.id],
            predicted.makespan_s - ours[device.id],
            theirs[device.id],
            measured.makespan_s - theirs[device.id],
        )
        for device in predicted.topology.devices
    )


def worst_offenders(predicted: Plan, op_times_s: Mapping[str, float], count: int = _LISTED) -> tuple[Offender, ...]:
    """The ops whose measured times are furthest from their predicted ones, whether longer or shorter."""
    found: Sequence[Offender] = [
        Offender(
            entry.op,
            predicted.graph.op(entry.op).kind,
            predicted.graph.op(entry.op).module,
            entry.device,
            entry.end_s - entry.start_s,
            op_times_s[entry.op],
        )
        for entry in predicted.ops
        if entry.op in op_times_s
    ]
    return tuple(sorted(found, key=lambda offender: -abs(offender.difference_s))[:count])


def _busy_s(plan: Plan) -> dict[str, float]:
    busy = {device.id: 0.0 for device in plan.topology.devices}
    for entry in plan.ops:
        busy[entry.device] += entry.end_s - entry.start_s
    return busy
