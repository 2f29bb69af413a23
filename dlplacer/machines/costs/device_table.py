"""Rates, memory and links of common devices: a row for each type, with its source.

Rates are peaks without sparsity. Float32 is the rate without TF32, because PyTorch leaves it off for matrix products.
PyTorch lets cuDNN use TF32 for convolutions (``torch.backends.cudnn.allow_tf32``), which may then beat the roofline:
profile such models, or give the devices ``flops_per_s``. Float16 and bfloat16 are the rates of tensor cores that
accumulate in float32, as PyTorch's kernels do. A dtype that a device lacks takes its float32 rate
(`dlplacer.machines.costs.roofline.Rates.peak_flops_per_s`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from dlplacer.core.topology import Device

FLOAT32 = "float32"
"""The dtype whose rate holds for every dtype that a device does not list: integers, bool, bfloat16 on a V100."""
CORE = "cpu-core"
"""The device type of a host's cores."""
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

    `flops_per_s`: Peak rate per dtype; float32 is always listed. `memory_bytes`: Size of its memory; None if it is the
    host's. `links`: Number of its NVLinks or xGMI links; if ``nvidia-smi topo -m`` lists more, there is a switch.
    `link_bytes_per_s`: Effective rate of one such link in one direction; 0 if none. `pcie`: Generation of its slot.
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
"""Share of a peak rate that ops attain."""

LAUNCH = Figure(7e-6, "kernel_launch_overhead in meta-pytorch/autoparallel, cost_models/compute_estimation.py")
"""Least time of an op on a device that queues ops: one kernel launch."""

CALL = Figure(
    5e-6,
    "Measured with PyTorch 2.13 on one thread of a Xeon, tensors of 4 to 64 elements: 1.7 to 3.8 us for add, relu, mm, "
    "cat, max pool and batch norm, 11 us for a convolution; 5 us stands for the mix.",
)
"""Least time of an op that runs inside the call that issues it."""

TURN = Figure(
    50e-6,
    "Measured with PyTorch 2.13 on two cores of a virtual EPYC: a step of a narrow transformer, 670 ops of mostly 3 to "
    "60 us, takes 9 to 12 ms alone and 15 to 23 ms if each core runs one: ops below 50 us gain nothing.",
)
"""Seconds from an op's start until another thread of the interpreter can start an op: the lock changes hands."""


def _rows() -> Iterator[tuple[str, DeviceType]]:
    """The rows of ``device_table.txt``, whose comments explain the columns."""
    for row in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if row.startswith("#"):
            continue
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
"""Name of a type in topologies → its figures."""


def is_core(device: Device) -> bool:
    """True if the call that issues an op also runs it: the device is synchronous, or of the type `CORE`."""
    return not device.asynchronous or device.type == CORE


def overhead_of(device: Device) -> Figure:
    """The least time of an op that does any work on this kind of device, a core or a GPU."""
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
"""Spelling in lower case, without spaces and punctuation → type."""


def known_type(name: str) -> str | None:
    """The type in the device table for a type or product name; None if there is no exact match.

    Case, spaces, hyphens and vendor words are ignored. Form factor and memory count if the table distinguishes them:
    ``Tesla V100-SXM2-16GB`` → ``V100``, ``A100-PCIE-40GB`` → ``A100-40GB``, ``rtx 3060`` → ``RTX3060``.
    """
    words = [word for word in re.findall(r"[a-z0-9.+]+", name.lower()) if word not in _MARKETING]
    without_form = [word for word in words if not _FORMS.fullmatch(word) or MEMORY.fullmatch(word)]
    without_memory = [word for word in words if not MEMORY.fullmatch(word)]
    bare = [word for word in without_form if not MEMORY.fullmatch(word)]
    spellings = ("".join(some) for some in (words, without_form, without_memory, bare))
    return next((_BY_NAME[spelling] for spelling in spellings if spelling in _BY_NAME), None)


def unknown_type(name: str) -> str:
    """A message about an unknown type name, with the most similar types, or all types if none is similar."""
    alike = str.maketrans("oil", "011")
    spellings = {spelling.translate(alike): kind for spelling, kind in _BY_NAME.items() if kind != CORE}
    words = [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _MARKETING]
    wanted = "".join(words).translate(alike)
    close = get_close_matches(wanted, spellings, n=12, cutoff=0.6)
    # Two swapped characters are likelier than a wrong one.
    close.sort(key=lambda spelling: sorted(spelling) != sorted(wanted))
    found = list(dict.fromkeys(spellings[spelling] for spelling in close))[:3]
    told = f"did you mean {' or '.join(found)}?" if found else f"it has {', '.join(DEVICE_TABLE)}."
    return f"device type {name.strip()!r} is not in the device table; {told}"
