"""Rates, memory and links of common devices: a row for each type, with its source.

Rates are peaks without sparsity. Float32 is the rate of the plain units: PyTorch leaves TF32 off for matrix products.
It lets cuDNN use TF32 for convolutions (``torch.backends.cudnn.allow_tf32``), which may then be faster than the
roofline says: profile them, or give the devices a ``flops_per_s`` of their own. Float16 and bfloat16 are the rates of
tensor cores that add in float32, as PyTorch's kernels do. A dtype that a device lacks takes its float32 rate
(`dlplacer.machines.costs.roofline.Rates.peak_flops_per_s`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from dlplacer.core.topology import Device

FLOAT32 = "float32"
"""The dtype whose rate stands in for all that a device does not list: integers, bool, bfloat16 on a V100."""
CORE = "cpu-core"
"""The type of the cores of a host."""
_COLUMNS = ("float64", FLOAT32, "float16", "bfloat16")
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and its source."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A row of the device table.

    Attributes
    ----------
    flops_per_s
        Peak rate per dtype; float32 is always there.
    memory_bytes
        Size of that memory; None if it is the host's.
    links
        NVLinks or xGMI links that it has; more than these lead to a switch.
    link_bytes_per_s
        Effective rate of one of them in one direction; 0 without any.
    """

    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    memory_bytes: int | None
    links: int
    link_bytes_per_s: float
    pcie: int
    source: str


EFFICIENCY = Figure(
    0.70,
    "meta-pytorch/autoparallel, cost_models/compute_estimation.py: 70 % of the peak for arithmetic as for memory. "
    "Matrix products were measured at 80 % on H100 and H200 (MAMF in stas00/ml-engineering).",
)
"""Share of a peak rate that ops reach."""

LAUNCH = Figure(7e-6, "kernel_launch_overhead in meta-pytorch/autoparallel, cost_models/compute_estimation.py")
"""Least time of an op on a device that queues ops: the launch of a kernel."""

CALL = Figure(
    5e-6,
    "Measured with PyTorch 2.13 on one thread of a Xeon, tensors of 4 to 64 elements: 1.7 to 3.8 us for add, relu, mm, "
    "cat, max pool and batch norm, 11 us for a convolution; 5 us stands for the mix.",
)
"""Least time of an op that runs inside the call that issues it."""

TURN = Figure(
    14e-6,
    "Measured with PyTorch 2.13 on two cores of a virtual Xeon, chains of 400 tanh and mm of 8 x 8 to 96 x 96 on one "
    "thread and on two at once: 3 to 10 us per op alone, 20 to 31 side by side, which is 10 to 15 for each.",
)
"""Seconds after an op's start until another thread of the same interpreter starts one: the lock changes hands."""

# TFLOP/s of float64, float32, float16 and bfloat16; memory in GB/s and GiB; links × GB/s of one; PCIe; source.
# NVLink: 18 GB/s and, with bridges, 12 by NCCL (src/graph/topo.h); else 0.83 of the data sheet's rate, the share that
# copies reach (371 to 377 of 450 GB/s on H100, issue 1264 of NVIDIA/nccl). xGMI: by RCCL (src/graph/topo.h). GeForce:
# float64 is 1/32 of float32 up to Turing and 1/64 since; float16 is twice float32 since Ampere (halved for float32
# sums). Rows for GCDs of MI250 and MI250X hold half of the board, as each is a device. Apple states M1's and M2's
# rates; of the others they are cores × 128 × 2 × clock (M3 1.38, M4 1.47, M4 Pro and Max 1.58 GHz, as measured).
_ROWS = """
K80             0.93  2.8   -     -     240    12  -        3 NVIDIA Tesla K80 board BD-07317, a GPU of two, no boost
P100            5.3   10.6  21.2  -     732    16  4×18     3 NVIDIA Tesla P100 data sheet, SXM2
P100-PCIe       4.7   9.3   18.7  -     732    16  -        3 NVIDIA Tesla P100 data sheet, PCIe 16 GB
P40             0.367 11.76 -     -     346    24  -        3 NVIDIA Tesla P40 data sheet
V100            7.8   15.7  125   -     900    16  6×20.75  3 NVIDIA V100 data sheet, SXM2; also sold with 32 GB
V100-PCIe       7     14    112   -     900    16  -        3 NVIDIA V100 data sheet, PCIe; also sold with 32 GB
T4              0.254 8.1   65    -     320    16  -        3 NVIDIA T4 data sheet; float64 as on all of Turing
A100            9.7   19.5  312   312   2039   80  12×20.75 4 NVIDIA A100 data sheet, SXM 80 GB
A100-PCIe       9.7   19.5  312   312   1935   80  12×20.75 4 NVIDIA A100 data sheet, PCIe 80 GB
A100-40GB       9.7   19.5  312   312   1555   40  12×20.75 4 NVIDIA A100 data sheet of 2020, 40 GB
A30             5.2   10.3  165   165   933    24  4×20.75  4 NVIDIA A30 data sheet
A10             0.488 31.2  125   125   600    24  -        4 NVIDIA A10 data sheet
A40             0.585 37.4  149.7 149.7 696    48  4×12     4 NVIDIA A40 data sheet
A4000           0.3   19.2  76.7  76.7  448    16  -        4 NVIDIA RTX A4000 data sheet
A5000           0.434 27.8  111.1 111.1 768    24  4×12     4 NVIDIA RTX A5000 data sheet
A6000           0.605 38.7  154.8 154.8 768    48  4×12     4 NVIDIA RTX A6000 data sheet
L4              0.473 30.3  121   121   300    24  -        4 NVIDIA L4 data sheet; half of what it prints with sparsity
L40             1.41  90.5  181   181   864    48  -        4 NVIDIA L40 data sheet
L40S            1.43  91.6  362   362   864    48  -        4 NVIDIA L40S data sheet
RTX6000Ada      1.42  91.1  364.2 364.2 960    48  -        4 NVIDIA RTX 6000 Ada Generation data sheet
RTXPRO6000      1.95  125   500   500   1792   96  -        5 NVIDIA RTX PRO 6000 Blackwell data sheet, Workstation
H100            34    67    989   989   3350   80  18×20.75 5 NVIDIA H100 data sheet, SXM; half of 1979 with sparsity
H100-PCIe       26    51    756   756   2000   80  12×20.75 5 NVIDIA H100 data sheet of 2022, PCIe
H100-NVL        30    60    835   835   3900   94  12×20.75 5 NVIDIA H100 data sheet, NVL
H200            34    67    989   989   4800   141 18×20.75 5 NVIDIA H200 data sheet, SXM
H200-NVL        30    60    835   835   4800   141 18×20.75 5 NVIDIA H200 data sheet, NVL
B200            37    75    2250  2250  7700   180 18×41.5  5 NVIDIA HGX B200 data sheet, one of its eight GPUs
GB200           40    80    2500  2500  8000   186 18×41.5  5 NVIDIA GB200 NVL72 data sheet, one of its 72 GPUs
GTX1080Ti       0.354 11.3  -     -     484    11  -        3 NVIDIA GeForce GTX 1080 Ti specifications
RTX2080Ti       0.42  13.4  53.8  -     616    11  2×20.75  3 NVIDIA Turing white paper, GeForce RTX 2080 Ti
RTX3060         0.198 12.7  25.4  25.4  360    12  -        4 NVIDIA GeForce RTX 3060 specifications, 12 GB
RTX3060Ti       0.253 16.2  32.4  32.4  448    8   -        4 NVIDIA GeForce RTX 3060 Ti specifications
RTX3070         0.317 20.3  40.6  40.6  448    8   -        4 NVIDIA Ampere GA102 white paper, RTX 3070
RTX3070Ti       0.34  21.7  43.5  43.5  608    8   -        4 NVIDIA GeForce RTX 3070 Ti specifications
RTX3080         0.466 29.8  59.5  59.5  760    10  -        4 NVIDIA Ampere GA102 white paper, RTX 3080
RTX3080-12GB    0.479 30.6  61.3  61.3  912    12  -        4 NVIDIA GeForce RTX 3080 specifications, 12 GB
RTX3080Ti       0.533 34.1  68.2  68.2  912    12  -        4 NVIDIA GeForce RTX 3080 Ti specifications
RTX3090         0.556 35.6  71    71    936    24  4×12     4 NVIDIA Ampere GA102 white paper, RTX 3090
RTX3090Ti       0.625 40    80    80    1008   24  4×12     4 NVIDIA GeForce RTX 3090 Ti specifications
RTX4060         0.236 15.1  30.2  30.2  272    8   -        4 NVIDIA GeForce RTX 4060 specifications
RTX4060Ti       0.345 22.1  44.1  44.1  288    8   -        4 NVIDIA GeForce RTX 4060 Ti specifications; also 16 GB
RTX4070         0.455 29.1  58.3  58.3  504    12  -        4 NVIDIA GeForce RTX 4070 specifications
RTX4070Super    0.555 35.5  71    71    504    12  -        4 NVIDIA GeForce RTX 4070 SUPER specifications
RTX4070Ti       0.627 40.1  80.2  80.2  504    12  -        4 NVIDIA GeForce RTX 4070 Ti specifications
RTX4070TiSuper  0.689 44.1  88.2  88.2  672    16  -        4 NVIDIA GeForce RTX 4070 Ti SUPER specifications
RTX4080         0.761 48.7  97.5  97.5  716.8  16  -        4 NVIDIA Ada white paper, GeForce RTX 4080
RTX4080Super    0.816 52.2  104.4 104.4 736    16  -        4 NVIDIA GeForce RTX 4080 SUPER specifications
RTX4090         1.29  82.6  165.2 165.2 1008   24  -        4 NVIDIA Ada white paper, GeForce RTX 4090
RTX5060         0.3   19.2  38.4  38.4  448    8   -        5 NVIDIA GeForce RTX 5060 specifications
RTX5060Ti       0.37  23.7  47.4  47.4  448    8   -        5 NVIDIA GeForce RTX 5060 Ti specifications; also 16 GB
RTX5070         0.482 30.9  61.7  61.7  672    12  -        5 NVIDIA RTX Blackwell white paper, GeForce RTX 5070
RTX5070Ti       0.687 43.9  87.9  87.9  896    16  -        5 NVIDIA RTX Blackwell white paper, GeForce RTX 5070 Ti
RTX5080         0.88  56.3  112.6 112.6 960    16  -        5 NVIDIA RTX Blackwell white paper, GeForce RTX 5080
RTX5090         1.64  104.8 209.5 209.5 1792   32  -        5 NVIDIA RTX Blackwell white paper, GeForce RTX 5090
MI50            6.6   13.3  26.5  -     1024   16  2×24     4 AMD Radeon Instinct MI50 data sheet
MI100           11.5  23.1  184.6 92.3  1228.8 32  3×24     4 AMD Instinct MI100 data sheet
MI210           22.6  22.6  181   181   1638.4 64  3×36     4 AMD Instinct MI210 data sheet
MI250           22.6  22.6  181   181   1638.4 64  8×36     4 AMD Instinct MI250 data sheet, one GCD of two
MI250X          23.9  23.9  191.5 191.5 1638.4 64  8×36     4 AMD Instinct MI250X data sheet, one GCD of two
MI300A          61.3  122.6 980.6 980.6 5300   128 6×48     5 AMD Instinct MI300A data sheet
MI300X          81.7  163.4 1307  1307  5300   192 7×48     5 AMD Instinct MI300X data sheet
MI325X          81.7  163.4 1307  1307  6000   256 7×48     5 AMD Instinct MI325X data sheet
MI350X          72.1  144.2 2307  2307  8000   288 7×48     5 AMD Instinct MI350X data sheet
MI355X          78.6  157.3 2517  2517  8000   288 7×48     5 AMD Instinct MI355X data sheet
RX7900XT        1.61  51.5  103   103   800    20  -        4 AMD Radeon RX 7900 XT specifications
RX7900XTX       1.92  61.4  122.8 122.8 960    24  -        4 AMD Radeon RX 7900 XTX specifications
M1              -     2.6   -     -     68.25  -   -        0 Apple newsroom, M1; MacBook Air; float32 computed
M1Pro           -     5.2   -     -     200    -   -        0 Apple newsroom, M1 Pro, 16 GPU cores; float32 computed
M1Max           -     10.4  -     -     400    -   -        0 Apple newsroom, M1 Max, 32 GPU cores; float32 computed
M1Ultra         -     20.8  -     -     800    -   -        0 Apple newsroom, M1 Ultra, 64 GPU cores; float32 computed
M2              -     3.6   -     -     100    -   -        0 Apple newsroom, M2, 10 GPU cores; float32 computed
M2Pro           -     6.8   -     -     200    -   -        0 Apple newsroom, M2 Pro, 19 GPU cores; float32 computed
M2Max           -     13.6  -     -     400    -   -        0 Apple newsroom, M2 Max, 38 GPU cores; float32 computed
M2Ultra         -     27.2  -     -     800    -   -        0 Apple newsroom, M2 Ultra, 76 GPU cores; float32 computed
M3              -     3.5   -     -     100    -   -        0 Apple specs, M3, 10 GPU cores; float32 computed
M3Pro           -     6.4   -     -     150    -   -        0 Apple specs, M3 Pro, 18 GPU cores; float32 computed
M3Max           -     14.1  -     -     400    -   -        0 Apple specs, M3 Max, 40 GPU cores; float32 computed
M3Ultra         -     28.3  -     -     819    -   -        0 Apple specs, M3 Ultra, 80 GPU cores; float32 computed
M4              -     3.8   -     -     120    -   -        0 Apple specs, M4, 10 GPU cores; float32 computed
M4Pro           -     8.1   -     -     273    -   -        0 Apple specs, M4 Pro, 20 GPU cores; float32 computed
M4Max           -     16.2  -     -     546    -   -        0 Apple specs, M4 Max, 40 GPU cores; float32 computed
cpu-core        0.048 0.096 -     -     12     -   -        0 A core with AVX2: 2 FMA units × 8 lanes × 2 × 3 GHz
"""
# A core alone reads 12 lines of 64 B in flight ÷ 64 ns = 12 GB/s; an add over 128 MiB reached 10 with PyTorch 2.13.


def _rows() -> Iterator[tuple[str, DeviceType]]:
    for row in _ROWS.strip().splitlines():
        name, *cells = row.split(maxsplit=9)
        rates, (memory, size, links, pcie, source) = cells[:4], cells[4:]
        count, _, each = links.partition("×")
        yield (
            name,
            DeviceType(
                MappingProxyType(
                    {dtype: float(f"{rate}e12") for dtype, rate in zip(_COLUMNS, rates, strict=True) if rate != "-"}
                ),
                float(f"{memory}e9"),
                None if size == "-" else int(size) * _GIB,
                int(count) if each else 0,
                float(f"{each or 0}e9"),
                int(pcie),
                source,
            ),
        )


DEVICE_TABLE: Mapping[str, DeviceType] = MappingProxyType(dict(_rows()))
"""Name of a type, as topologies write it → its figures."""


def is_core(device: Device) -> bool:
    """True if an op runs inside the call that issues it: by the device's own word, or as its type is a core."""
    return not device.asynchronous or device.type == CORE


def overhead_of(device: Device) -> Figure:
    """The least time of an op that does anything, which depends on the kind of device alone."""
    return CALL if is_core(device) else LAUNCH


MEMORY = re.compile(r"(\d{1,3}) ?(?:gb|gib)")
"""The memory in a product name, in lower case."""
_MARKETING = frozenset(
    ("nvidia", "tesla", "quadro", "geforce", "amd", "radeon", "instinct", "apple", "blackwell", "generation")
    + ("workstation", "edition", "graphics", "gpu")
)
_FORMS = re.compile(r"sxm\d?|pcie|hbm\d?e?|gddr\d?x?|nvl|oam|\d{1,3}gi?b")
_ALIASES = {"mi250xmi250": "MI250X"}


def _normal(name: str) -> str:
    return "".join(re.findall(r"[a-z0-9]+", name.lower()))


_BY_NAME: Mapping[str, str] = (
    _ALIASES
    | {_normal(kind).removeprefix("rtx"): kind for kind in DEVICE_TABLE if kind.startswith("RTX")}
    | {"rtx" + _normal(kind): kind for kind in ("A4000", "A5000", "A6000")}
    | {_normal(kind): kind for kind in DEVICE_TABLE}
)
"""Spelling without case, gaps and hyphens → type."""


def known_type(name: str) -> str | None:
    """The type of the device table that a type or product name means exactly; None if it means none.

    Case, gaps, hyphens and the vendor's words do not count; form factor and memory do if the table tells them apart:
    ``Tesla V100-SXM2-16GB`` → ``V100``, ``A100-PCIE-40GB`` → ``A100-40GB``, ``rtx 3060`` → ``RTX3060``.
    """
    words = [word for word in re.findall(r"[a-z0-9.+]+", name.lower()) if word not in _MARKETING]
    without_form = [word for word in words if not _FORMS.fullmatch(word) or MEMORY.fullmatch(word)]
    without_memory = [word for word in words if not MEMORY.fullmatch(word)]
    bare = [word for word in without_form if not MEMORY.fullmatch(word)]
    spellings = ("".join(some) for some in (words, without_form, without_memory, bare))
    return next((_BY_NAME[spelling] for spelling in spellings if spelling in _BY_NAME), None)


def unknown_type(name: str) -> str:
    """A text on a name that no type has: the nearest types, or all if none is near."""
    alike = str.maketrans("oil", "011")
    spellings = {spelling.translate(alike): kind for spelling, kind in _BY_NAME.items() if kind != CORE}
    words = [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _MARKETING]
    wanted = "".join(words).translate(alike)
    close = get_close_matches(wanted, spellings, n=12, cutoff=0.6)
    # Two characters that changed places are likelier than one that is another.
    close.sort(key=lambda spelling: sorted(spelling) != sorted(wanted))
    found = list(dict.fromkeys(spellings[spelling] for spelling in close))[:3]
    told = f"did you mean {' or '.join(found)}?" if found else f"it has {', '.join(DEVICE_TABLE)}."
    return f"device type {name.strip()!r} is not in the device table; {told}"
