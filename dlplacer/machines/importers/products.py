"""Devices by the name of their product or type, with memory and rates from the device table."""

import re
from collections.abc import Mapping
from typing import Any

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Topology
from dlplacer.core.units import format_bytes
from dlplacer.machines.costs.device_table import DEVICE_TABLE
from dlplacer.machines.importers.rates import GENERATIONS

CORE = "cpu-core"
_GPU_TYPES = frozenset({*GENERATIONS, *DEVICE_TABLE} - {CORE})
# Boards for workstations and games have a gap in their names; with Ti, SUPER or D behind it they are other chips.
_WITH_GAP = re.compile(r"\b(RTX|GTX) ?(\d{4})\b(?: (Ti|SUPER|D|Ada)\b)?")
_IN_ONE_WORD = re.compile(r"\b[A-Z]{1,3}\d{1,4}[A-Z]?\b")
_MEMORY = re.compile(r"\b(\d{1,3}) ?GB\b")
_OTHER_GPU = re.compile(
    r"gpu|sm\d+|(?:RTX|GTX|MI|GH|GB|[ABHLPTV])\d{2,4}[A-Za-z]*|(?:NVIDIA|Tesla|Quadro|GeForce|AMD) .*"
)


def type_of_name(name: str) -> str:
    """The device type in a product name: ``Tesla V100-SXM2-16GB`` → ``V100``, ``GeForce RTX 4090`` → ``RTX4090``.

    A name in which no type is recognized is kept. So are those of chips for notebooks, which bear the names of larger
    ones.
    """
    words = name.replace("-", " ")
    if "laptop" in words.lower() or "max q" in words.lower():
        return name
    gap, one = _WITH_GAP.search(words), _IN_ONE_WORD.search(words)
    if gap is not None:
        return "".join(part for part in gap.groups() if part)
    return name if one is None else one[0]


def device_of_type(device_id: str, name: str, memory_bytes: int | None = None, meta: Mapping[str, Any] = {}) -> Device:
    """A device of a type or product, ``V100`` or ``A100-SXM4-40GB``: memory and rates by the device table.

    Parameters
    ----------
    memory_bytes
        As the device itself says; else what the name says (``32GB``), else what the table says; unlimited for a type
        that the table does not have.
    """
    kind = type_of_name(name)
    entry = DEVICE_TABLE.get(kind)
    if entry is None:
        return Device(device_id, kind, memory_bytes, meta=meta)
    told = _MEMORY.search(name.replace("-", " "))
    if memory_bytes is None and told is not None:
        memory_bytes = int(told[1]) * 2**30
    if memory_bytes is None and entry.memory_bytes is not None:
        memory_bytes = int(entry.memory_bytes.value)
    rates = {dtype: figure.value for dtype, figure in entry.flops_per_s.items()}
    return Device(device_id, kind, memory_bytes, rates, entry.memory_bytes_per_s.value, meta)


def require_known_type(name: str) -> None:
    """Return if the device table has the type, or the type in the product name.

    Raises
    ------
    InputError
        Otherwise; lists the types that it has.
    """
    if type_of_name(name.strip()) not in DEVICE_TABLE:
        known = ", ".join(kind for kind in DEVICE_TABLE if kind != CORE)
        raise InputError(
            f"device type {name!r} is not in the device table; use one of {known}, with the memory where it has "
            "several, as V100-32GB; or leave the type out and write memory_bytes and flops_per_s into the file"
        )


def unlimited_gpus(topology: Topology) -> str | None:
    """What to say of GPUs whose memory a topology leaves unlimited; None if there are none."""
    found = [device for device in topology.devices if device.memory_bytes is None and _is_gpu(device.type)]
    if not found:
        return None
    names = ", ".join(device.id for device in found[:4]) + (", …" if len(found) > 4 else "")
    entry = DEVICE_TABLE.get(found[0].type)
    size = ""
    if entry is not None and entry.memory_bytes is not None:
        size = f" ({found[0].type}: {format_bytes(entry.memory_bytes.value)})"
    return (
        f"topology {topology.name!r} leaves the memory of {names} (type {found[0].type}) unlimited: a plan may need "
        f"more than there is; give memory_bytes{size}, or import the machine with --type"
    )


def _is_gpu(device_type: str) -> bool:
    return device_type in _GPU_TYPES or _OTHER_GPU.fullmatch(device_type) is not None
