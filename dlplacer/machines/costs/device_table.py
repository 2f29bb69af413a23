"""What common devices can do: peak rates, memory rate and overhead per op, each number with its source.

Float16 and bfloat16 are rates of the tensor cores without sparsity. Float32 is the rate of the plain float32 units:
TF32 is not assumed. PyTorch leaves TF32 off for matrix products but lets cuDNN use it for convolutions
(``torch.backends.cuda.matmul.allow_tf32`` is False, ``torch.backends.cudnn.allow_tf32`` True, seen in 2.13), so float32
convolutions of an A100, H100 or H200 may be faster than the roofline says; profile them, or give the topology's devices
a ``flops_per_s`` of their own. Float64 is likewise that of the plain units; matrix products on tensor cores reach twice
as much on these three. T4, L4 and RTX 4090 hardly compute in float64.

A dtype that a device lacks takes its float32 rate (`dlplacer.machines.costs.roofline.Rates.peak_flops_per_s`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

FLOAT32 = "float32"
"""The dtype whose rate stands in for all that a device does not list: integers, bool, bfloat16 on a V100."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and where it comes from."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class DeviceType:
    """What the roofline needs to know of a type of device.

    Attributes
    ----------
    flops_per_s
        Peak rate per dtype; float32 is always there.
    memory_bytes_per_s
        Peak rate of the device's own memory.
    memory_bytes
        Size of that memory, of the smallest variant that is sold; None where the host's is shared.
    overhead_s
        Least time of an op that does anything: a kernel launch on a GPU, the call into the library on a CPU.
    """

    flops_per_s: Mapping[str, Figure]
    memory_bytes_per_s: Figure
    overhead_s: Figure
    memory_bytes: Figure | None = None


EFFICIENCY = Figure(
    0.70,
    "meta-pytorch/autoparallel, cost_models/compute_estimation.py: 70 % of the peak for arithmetic as for memory. "
    "Matrix products were measured at 80 % on H100 and H200 (MAMF in stas00/ml-engineering).",
)
"""Share of a peak rate that ops reach."""

_LAUNCH = Figure(7e-6, "kernel_launch_overhead in meta-pytorch/autoparallel, cost_models/compute_estimation.py")
_CALL = Figure(
    5e-6,
    "Measured with PyTorch 2.13 on one thread of a Xeon, tensors of 4 to 64 elements: 1.7 to 3.8 us for add, relu, mm, "
    "cat, max pool and batch norm, 11 us for a convolution; 5 us stands for the mix.",
)

TURN = Figure(
    14e-6,
    "Measured with PyTorch 2.13 on two cores of a virtual Xeon, chains of 400 tanh and mm of 8 x 8 to 96 x 96 on one "
    "thread and on two at once: 3 to 10 us per op alone, 20 to 31 side by side, which is 10 to 15 for each.",
)
"""Seconds after an op's start until another thread of the same interpreter starts one: the lock changes hands."""

_GIB = 2**30

_P100 = "NVIDIA Tesla P100 GPU accelerator data sheet, SXM2 module"
_V100 = "NVIDIA V100 Tensor Core GPU data sheet, SXM2 module"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet, SXM module of 80 GB"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet, SXM module"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet, SXM module"
_B200 = "NVIDIA HGX B200 data sheet, one of its eight GPUs"
_T4 = "NVIDIA T4 Tensor Core GPU data sheet"
_L4 = "NVIDIA L4 Tensor Core GPU data sheet"
_RTX4090 = "NVIDIA Ada GPU Architecture white paper, GeForce RTX 4090"
_HALVED = "half of the 1979 TFLOP/s printed, which count sparsity"
_AVX2 = "A generic server core with AVX2 at 3 GHz"
_FMA = "FLOPS per cycle for sandy-bridge and haswell, Stack Overflow"

DEVICE_TABLE: Mapping[str, DeviceType] = MappingProxyType(
    {
        "P100": DeviceType(
            flops_per_s=MappingProxyType(
                {
                    "float64": Figure(5.3e12, _P100),
                    FLOAT32: Figure(10.6e12, _P100),
                    "float16": Figure(21.2e12, f"{_P100}: no tensor cores"),
                }
            ),
            memory_bytes_per_s=Figure(732e9, f"{_P100}: HBM2"),
            overhead_s=_LAUNCH,
            memory_bytes=Figure(16 * _GIB, _P100),
        ),
        "V100": DeviceType(
            flops_per_s=MappingProxyType(
                {
                    "float64": Figure(7.8e12, _V100),
                    FLOAT32: Figure(15.7e12, _V100),
                    "float16": Figure(125e12, f"{_V100}: tensor cores, which know no bfloat16"),
                }
            ),
            memory_bytes_per_s=Figure(900e9, f"{_V100}: HBM2"),
            overhead_s=_LAUNCH,
            memory_bytes=Figure(16 * _GIB, f"{_V100}, which is sold with 32 GB too; 16 GB is the careful side"),
        ),
        "A100": DeviceType(
            flops_per_s=MappingProxyType(
                {
                    "float64": Figure(9.7e12, f"{_A100}: FP64, without tensor cores"),
                    FLOAT32: Figure(19.5e12, f"{_A100}: FP32, without TF32"),
                    "float16": Figure(312e12, f"{_A100}: tensor cores, without sparsity"),
                    "bfloat16": Figure(312e12, f"{_A100}: tensor cores, without sparsity"),
                }
            ),
            memory_bytes_per_s=Figure(2039e9, f"{_A100}: HBM2e"),
            overhead_s=_LAUNCH,
            memory_bytes=Figure(80 * _GIB, f"{_A100}; the first ones had 40 GB: write A100-40GB"),
        ),
        "H100": DeviceType(
            flops_per_s=MappingProxyType(
                {
                    "float64": Figure(34e12, f"{_H100}: FP64, without tensor cores"),
                    FLOAT32: Figure(67e12, f"{_H100}: FP32, without TF32"),
                    "float16": Figure(989e12, f"{_H100}: {_HALVED}"),
                    "bfloat16": Figure(989e12, f"{_H100}: {_HALVED}"),
                }
            ),
            memory_bytes_per_s=Figure(3350e9, f"{_H100}: HBM3"),
            overhead_s=_LAUNCH,
            memory_bytes=Figure(80 * _GIB, _H100),
        ),
        "H200": DeviceType(
            flops_per_s=MappingProxyType(
                {
                    "float64": Figure(34e12, f"{_H200}: FP64, without tensor cores"),
                    FLOAT32: Figure(67e12, f"{_H200}: FP32, without TF32"),
                    "float16": Figure(989e12, f"{_H200}: {_HALVED}"),
                    "bfloat16": Figure(989e12, f"{_H200}: {_HALVED}"),
                }
            ),
            memory_bytes_per_s=Figure(4800e9, f"{_H200}: HBM3e"),
            overhead_s=_LAUNCH,
            memory_bytes=Figure(141 * _GIB, _H200),
        ),
        "B200": DeviceType(
            flops_per_s=MappingProxyType(
                {
                    "float64": Figure(37e12, _B200),
                    FLOAT32: Figure(75e12, _B200),
                    "float16": Figure(2250e12, f"{_B200}: half of the 4.5 PFLOP/s printed, which count sparsity"),
                    "bfloat16": Figure(2250e12, f"{_B200}: half of the 4.5 PFLOP/s printed, which count sparsity"),
                }
            ),
            memory_bytes_per_s=Figure(7700e9, f"{_B200}: HBM3e"),
            overhead_s=_LAUNCH,
            memory_bytes=Figure(180 * _GIB, _B200),
        ),
        "T4": DeviceType(
            flops_per_s=MappingProxyType(
                {
                    "float64": Figure(0.254e12, f"{_T4}: a thirty-second of float32, as on all of Turing"),
                    FLOAT32: Figure(8.1e12, _T4),
                    "float16": Figure(65e12, f"{_T4}: tensor cores, which know no bfloat16"),
                }
            ),
            memory_bytes_per_s=Figure(320e9, f"{_T4}: GDDR6"),
            overhead_s=_LAUNCH,
            memory_bytes=Figure(16 * _GIB, _T4),
        ),
        "L4": DeviceType(
            flops_per_s=MappingProxyType(
                {
                    "float64": Figure(0.473e12, f"{_L4}: a sixty-fourth of float32, as on all of Ada"),
                    FLOAT32: Figure(30.3e12, _L4),
                    "float16": Figure(121e12, f"{_L4}: half of the 242 TFLOP/s printed, which count sparsity"),
                    "bfloat16": Figure(121e12, f"{_L4}: half of the 242 TFLOP/s printed, which count sparsity"),
                }
            ),
            memory_bytes_per_s=Figure(300e9, f"{_L4}: GDDR6"),
            overhead_s=_LAUNCH,
            memory_bytes=Figure(24 * _GIB, _L4),
        ),
        "RTX4090": DeviceType(
            flops_per_s=MappingProxyType(
                {
                    "float64": Figure(1.29e12, f"{_RTX4090}: a sixty-fourth of float32"),
                    FLOAT32: Figure(82.6e12, _RTX4090),
                    "float16": Figure(165.2e12, f"{_RTX4090}: tensor cores that add in float32, without sparsity"),
                    "bfloat16": Figure(165.2e12, f"{_RTX4090}: tensor cores that add in float32, without sparsity"),
                }
            ),
            memory_bytes_per_s=Figure(1008e9, f"{_RTX4090}: GDDR6X"),
            overhead_s=_LAUNCH,
            memory_bytes=Figure(24 * _GIB, _RTX4090),
        ),
        "cpu-core": DeviceType(
            flops_per_s=MappingProxyType(
                {
                    "float64": Figure(48e9, f"{_AVX2}: 2 FMA units × 4 lanes × 2 FLOP × 3 GHz ({_FMA})"),
                    FLOAT32: Figure(96e9, f"{_AVX2}: 2 FMA units × 8 lanes × 2 FLOP × 3 GHz ({_FMA})"),
                }
            ),
            memory_bytes_per_s=Figure(
                12e9,
                "One core alone: 12 lines of 64 B in flight ÷ 64 ns (line-fill buffers: Why is Skylake so much better "
                "than Broadwell-E for single-threaded memory throughput, Stack Overflow). A float32 add over 128 MiB "
                "reached 10 GB/s on one thread of a Xeon with PyTorch 2.13.",
            ),
            overhead_s=_CALL,
        ),
    }
)
"""Name of a type, as topologies write it → its rates."""
