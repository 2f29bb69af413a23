"""Where the time of a measured step went: from an even share of the baseline to what was measured."""

from collections.abc import Collection
from dataclasses import dataclass

from dlplacer.core.plan import Plan
from dlplacer.report.waited_transfers import waited_for


@dataclass(frozen=True, slots=True)
class Loss:
    """Seconds by which a measured step exceeds an even share of the baseline on every device, by cause.

    The baseline is B seconds, the plan's ops on one device take S, the host's part aside, and the plan has U devices.
    On the mean of these, a measured step of M seconds is M = host + busy + idle, so that M − B/U is the sum of the
    fields. A negative field is a gain.

    Attributes
    ----------
    ideal_s
        B/U, no part of the sum.
    runtime_s
        (S − B)/U: the ops cost more, placed on one device, than plain PyTorch's own step.
    contention_s
        busy − S/U: ops take longer while the other devices work.
    idle_s
        Devices wait for an op of another device to end, or have nothing left to do.
    handover_s
        Tensors change devices: the time in which a device waits for one that is made.
    host_s
        Before the devices start, and after they end.
    """

    ideal_s: float
    runtime_s: float
    contention_s: float
    idle_s: float
    handover_s: float
    host_s: float

    @property
    def total_s(self) -> float:
        """Measured less ideal."""
        return self.runtime_s + self.contention_s + self.idle_s + self.handover_s + self.host_s


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """The steps that a loss is found from, each as its caller sees it.

    Attributes
    ----------
    measured_s, recorded_s
        The plan's step, and one that was recorded, which takes longer.
    baseline_s, one_device_s
        Plain PyTorch's step, and the plan's ops placed on one device, without the host's part; for the batch of one
        replica.
    """

    measured_s: float
    recorded_s: float
    baseline_s: float
    one_device_s: float


def loss_of(predicted: Plan, recorded: Plan, devices: Collection[str], seconds: StepSeconds, replicas: int = 1) -> Loss:
    """The causes of a loss, from a recorded step; recording lengthens it, so that its parts count in proportion.

    Parameters
    ----------
    predicted
        For its transfers.
    recorded
        The recorded step on the same devices.
    devices
        Those that the plan uses, of all replicas, without networks.
    """
    count, length_s = len(devices), recorded.makespan_s
    scale, share = seconds.measured_s / max(seconds.recorded_s, length_s), replicas / count
    busy_s = sum(entry.end_s - entry.start_s for entry in recorded.ops if entry.device in devices) / count
    waits = [moved for moved in waited_for(predicted, recorded) if moved.target in devices]
    waited_s = sum(moved.end_s - moved.start_s for moved in waits) / count
    return Loss(
        ideal_s=share * seconds.baseline_s,
        runtime_s=share * (seconds.one_device_s - seconds.baseline_s),
        contention_s=scale * busy_s - share * seconds.one_device_s,
        idle_s=scale * (length_s - busy_s - waited_s),
        handover_s=scale * waited_s,
        host_s=seconds.measured_s - scale * length_s,
    )
