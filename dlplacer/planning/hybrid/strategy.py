"""A strategy to train on some devices, and how long it takes."""

from dataclasses import asdict, dataclass
from typing import Any

from dlplacer.planning.hybrid.communication.step_times import StepTime
from dlplacer.planning.hybrid.placed_workers import WorkerSplit


@dataclass(frozen=True)
class Strategy:
    """Data-parallel workers of M devices each, exchanging gradients by one codec and transport.

    Attributes
    ----------
    devices, degree
        Devices in use, parameter servers included, and M of them per worker.
    epochs
        E: epochs with this batch, codec and period.
    effort_s
        Step time × steps × epochs of a data set of one mini-batch: what ranks strategies whatever the data set.
    """

    devices: int
    degree: int
    split: WorkerSplit
    step: StepTime
    epochs: float

    @property
    def workers(self) -> int:
        """Data-parallel workers: the devices that serve no parameters ÷ M."""
        return (self.devices - self.step.servers) // self.degree

    @property
    def effort_s(self) -> float:
        """T · E ÷ workers: the time to converge over the mini-batches of the data set (eq. 1)."""
        return self.step.step_s * self.epochs / self.workers

    def time_s(self, mini_batches: float) -> float:
        """C = T · S · E of eq. 1, for a data set of so many mini-batches."""
        return self.effort_s * mini_batches

    @property
    def label(self) -> str:
        """A short text: ``32 x 2``, with the codec and the period where they are not the plain ones."""
        parts = [f"{self.workers} x {self.degree}"]
        if self.split.micro_batches > 1:
            parts.append(f"{self.split.micro_batches} micro-batches")
        if self.step.codec != "none" or self.step.servers:
            parts.append(f"{self.step.codec}/{self.step.transport}")
        if self.step.servers:
            parts.append(f"{self.step.servers} servers" if self.step.servers > 1 else "1 server")
        if self.step.period > 1:
            parts.append(f"every {self.step.period} steps")
        return ", ".join(parts)

    def to_dict(self, reference_s: float | None, mini_batches: float | None) -> dict[str, Any]:
        """The strategy as JSON: times in seconds, speedup over the effort of one device.

        Parameters
        ----------
        reference_s
            Effort of training on one device; None where the model fits on none.
        mini_batches
            Of the data set; None leaves the total time out.
        """
        return {
            "devices": self.devices,
            "workers": self.workers,
            "model_parallel": self.degree,
            "model_parallel_speedup": self.split.speedup,
            "model_parallel_method": self.split.method,
            "micro_batches": self.split.micro_batches,
            **asdict(self.step),
            "epochs": self.epochs,
            "time_s": None if mini_batches is None else self.time_s(mini_batches),
            "speedup": None if reference_s is None else reference_s / self.effort_s,
        }
