"""The performance model of TernGrad's appendix B: throughput of data parallelism on machines of several GPUs.

The paper's text lost the symbols of eq. 27–30; their structure follows from its words: gradients are summed along a
tree of the GPUs of a machine, go to the CPU, and are summed along a tree of machines.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.core.errors import InputError
from dlplacer.machines.costs.gradient_codecs import sum_bits

SCALINGS = ("strong", "weak")
_CODE_BITS = 2


@dataclass(frozen=True)
class Cluster:
    """Equal machines of equal GPUs; rates in bytes per second, latency in seconds."""

    gpus_per_machine: int
    gpu_gpu_bytes_per_s: float
    cpu_gpu_bytes_per_s: float
    network_bytes_per_s: float
    network_latency_s: float

    def __post_init__(self) -> None:
        for name in ("gpus_per_machine", "gpu_gpu_bytes_per_s", "cpu_gpu_bytes_per_s", "network_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"cluster: {name} is {getattr(self, name)}; it must be positive")
        if not self.network_latency_s >= 0:
            raise InputError(f"cluster: network_latency_s is {self.network_latency_s}; it must be at least 0")


@dataclass(frozen=True)
class GpuWorkload:
    """A model's step on one GPU.

    Attributes
    ----------
    step_s
        T_ps: measured seconds of a step of `batch` samples on one GPU with its CPU, the copy of the gradient included.
    gradient_bytes
        |g| as float32.
    """

    step_s: float
    batch: int
    gradient_bytes: float

    def __post_init__(self) -> None:
        for name in ("step_s", "batch", "gradient_bytes"):
            if not getattr(self, name) > 0:
                raise InputError(f"workload: {name} is {getattr(self, name)}; it must be positive")


def communication_s(cluster: Cluster, gradient_bytes: float, gpus: int) -> float:
    """T_comm in seconds: within a machine and between machines, for this many GPUs, filled machine by machine.

    Raises
    ------
    InputError
        If there are no GPUs.
    """
    if gpus < 1:
        raise InputError(f"there are {gpus} GPUs; give at least 1")
    inside = min(gpus, cluster.gpus_per_machine)
    machines = math.ceil(gpus / cluster.gpus_per_machine)
    within_s = gradient_bytes / cluster.cpu_gpu_bytes_per_s
    within_s += math.log2(inside) * gradient_bytes / cluster.gpu_gpu_bytes_per_s
    between_s = math.log2(machines) * (cluster.network_latency_s + gradient_bytes / cluster.network_bytes_per_s)
    return within_s + between_s


def step_s(cluster: Cluster, work: GpuWorkload, gpus: int, scaling: str = "strong", ternary: bool = False) -> float:
    """Seconds of a step on this many GPUs (eq. 27 strong, eq. 29 weak).

    Strong scaling shares `work.batch` samples out, weak scaling gives that many to every GPU. With ternary gradients a
    push carries 2 bits for 32 and a pull ⌈log2(2N + 1)⌉: on average over both directions the bytes shrink accordingly.

    Raises
    ------
    InputError
        If there are no GPUs, the scaling is unknown, or the step is shorter than the copy of its gradient.
    """
    if scaling not in SCALINGS:
        raise InputError(f"scaling is {scaling!r}; use one of {', '.join(SCALINGS)}")
    compute_s = work.step_s - work.gradient_bytes / cluster.cpu_gpu_bytes_per_s
    if compute_s < 0:
        copy_s = work.gradient_bytes / cluster.cpu_gpu_bytes_per_s
        raise InputError(
            f"workload: step_s is {work.step_s:g}, but its gradient alone needs {copy_s:g} s to reach the CPU; measure "
            "step_s with that copy, or correct cpu_gpu_bytes_per_s"
        )
    share = (_CODE_BITS + sum_bits(gpus)) / 64 if ternary else 1.0
    sent_bytes = work.gradient_bytes * share
    return compute_s / (gpus if scaling == "strong" else 1) + communication_s(cluster, sent_bytes, gpus)


def samples_per_s(
    cluster: Cluster, work: GpuWorkload, gpus: int, scaling: str = "strong", ternary: bool = False
) -> float:
    """Throughput (eq. 28 strong, eq. 30 weak); raises as `step_s`."""
    batch = work.batch * (gpus if scaling == "weak" else 1)
    return batch / step_s(cluster, work, gpus, scaling, ternary)


def ternary_speedups(
    cluster: Cluster, work: GpuWorkload, gpu_counts: Sequence[int], scaling: str = "strong"
) -> dict[int, float]:
    """GPUs → throughput with ternary gradients ÷ without."""
    return {
        gpus: samples_per_s(cluster, work, gpus, scaling, True) / samples_per_s(cluster, work, gpus, scaling, False)
        for gpus in gpu_counts
    }
