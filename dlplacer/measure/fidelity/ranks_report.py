"""What a run over several processes measured, beside what was predicted."""

from dataclasses import asdict, dataclass
from typing import Any

from dlplacer.measure.fidelity.run_report import DeviceUse, Offender


@dataclass(frozen=True)
class RanksReport:
    """What a run over several processes measured: medians in seconds per step.

    Attributes
    ----------
    baseline_s
        Eager PyTorch on one device and one replica's batch, on every process at the same time; their mean.
    predicted_s
        Replays of the plan under links, all-reduces and, sample by sample, the op times that all processes measure at
        once, in turns with the steps of the run; the median. `host_s` is a part of it.
    measured_s
        The placed step, each on its slowest process.
    predicted_speedup, measured_speedup
        Samples per second over those of one device: replicas × serial op times ÷ predicted, replicas × baseline ÷
        measured.
    prediction_error
        |predicted − measured| ÷ measured.
    max_abs_error
        Largest difference of the loss and any gradient (or updated parameter) to one process that takes the mean over
        the replicas' parts.
    full_batch_error
        The same to one process on the whole batch at once: larger where batch norm sees other batches. None with one
        replica, where the replicas got one and the same batch, and where ops are random.
    draws
        As in `RunReport`; plain PyTorch draws the same numbers for `max_abs_error` alone.
    host_s
        What calling a step costs before and behind its program, the mean of all processes.
    all_reduce_latency_s, all_reduce_s_per_byte
        Line of the measured all-reduce; 0 with one replica.
    use
        Per device of every rank, ``rank0/d0``, and the network of every rank; a collective is busy while it waits for
        the other replicas.
    offenders
        The ops whose measured time, the mean over the replicas, differs most from the predicted one, the worst first.
    """

    replicas: int
    ranks: int
    baseline_s: float
    predicted_s: float
    measured_s: float
    predicted_speedup: float
    measured_speedup: float
    prediction_error: float
    max_abs_error: float
    full_batch_error: float | None
    plan_makespan_s: float
    host_s: float
    all_reduce_latency_s: float
    all_reduce_s_per_byte: float
    buckets: int
    steps: int
    devices: tuple[str, ...]
    draws: str
    use: tuple[DeviceUse, ...]
    offenders: tuple[Offender, ...]
    step: str = "joint"

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer run --replicas N --json`` prints."""
        return asdict(self)
