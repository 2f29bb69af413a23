"""This host: its GPUs as ``nvidia-smi`` reports them, or the cores of this process."""

import os
import shutil
import subprocess
from contextlib import suppress

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.machines.cores import usable_cores
from dlplacer.machines.costs.device_table import CORE, DEVICE_TABLE, TURN
from dlplacer.machines.importers.nvidia_smi import TopoMatrix, parse_matrix, topology_of_matrix
from dlplacer.machines.importers.products import device_of_type, link_figures, pcie_slot_bytes_per_s

_AT_ONCE_BYTES_PER_S = 1e15
"""Cores of one process share memory: a tensor is passed as a pointer, and no byte is copied."""
_HANDOVER_S = 30e-6
"""Seconds to wake the thread of another core; `topology detect --measure` measures it."""

_ANSWER_S = 20.0
_QUERY = "name,memory.total,pcie.link.gen.max,pcie.link.width.max"


def detected_topology(kind: str = "auto") -> Topology:
    """The GPUs of this host or, if it has none, the cores of this process.

    Raises InputError if `kind` is ``gpu`` and there are no GPUs.
    """
    return gpu_topology() if kind == "gpu" or (kind == "auto" and has_gpus()) else host_topology()


def has_gpus() -> bool:
    """True if ``nvidia-smi`` reports a GPU."""
    try:
        return bool(_gpu_rows())
    except InputError:
        return False


def gpu_topology() -> Topology:
    """A machine of devices ``gpu0``… with the type, memory and slot of each GPU, its NVLinks and the PCIe tree.

    Raises InputError if there is no driver, or no GPU.
    """
    rows = _gpu_rows()
    devices = tuple(
        device_of_type(f"gpu{number}", name, _whole(mebibytes, 2**20), {"product": name})
        for number, (name, mebibytes, *_) in enumerate(rows)
    )
    slots = [
        pcie_slot_bytes_per_s(_whole(generation) or link_figures(device.type).pcie, _whole(width) or 16)
        for device, (*_, generation, width) in zip(devices, rows, strict=True)
    ]
    source = "nvidia-smi; rates of links by generation"
    with suppress(InputError):
        matrix = parse_matrix(_nvidia_smi("topo", "-m"), "nvidia-smi topo -m")
        if len(matrix.cells) == len(devices):
            return topology_of_matrix(matrix, devices, slots, source=source)
    # Guests of WSL and of some hypervisors do not see the PCIe tree of their GPUs.
    return topology_of_matrix(TopoMatrix.unknown(len(devices)), devices, slots, source=source)


def _gpu_rows() -> list[list[str]]:
    text = _nvidia_smi(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.rsplit(",", 3)] for line in text.splitlines() if line.count(",") >= 3]
    if not rows:
        raise InputError(f"nvidia-smi reports no GPUs; it answers {text.strip()[:200]!r}")
    return rows


def _nvidia_smi(*arguments: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise InputError(
            "nvidia-smi is not installed, so this host has no NVIDIA driver; on the machine with the GPUs run "
            "`dlplacer topology detect`, or `nvidia-smi topo -m` and `dlplacer topology import` its output"
        )
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, errors="replace", timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stdout", None) or error
        raise InputError(f"nvidia-smi does not report the GPUs ({str(told).strip()}); check the driver") from error
    return done.stdout


def _whole(text: str, unit: int = 1) -> int | None:
    """The number in a cell; None if the driver does not report it, for example for a GPU split into instances."""
    return unit * int(text) if text.isdecimal() else None


def host_topology(cores: list[int] | None = None) -> Topology:
    """The cores that this process may use.

    The cores run threads of one process, which share its interpreter. Two cores are joined directly, more cores by a
    router. All cores share the memory, so no core has a capacity of its own.
    """
    usable, rates = usable_cores() if cores is None else cores, DEVICE_TABLE[CORE]
    devices = tuple(
        Device(
            f"cpu{position}",
            CORE,
            flops_per_s=rates.flops_per_s,
            memory_bytes_per_s=rates.memory_bytes_per_s,
            meta={"core": core},
            dispatch_s=TURN.value,
            process="host",
            asynchronous=False,
        )
        for position, core in enumerate(usable)
    )
    routers = (Router("memory"),) if len(devices) > 2 else ()
    links = tuple(Link(device.id, "memory", _AT_ONCE_BYTES_PER_S, _HANDOVER_S / 2) for device in devices)
    if not routers:
        links = (Link("cpu0", "cpu1", _AT_ONCE_BYTES_PER_S, _HANDOVER_S),) if len(devices) == 2 else ()
    source = "cores of this host; rates of a generic core, see dlplacer.machines.costs.device_table"
    return Topology(devices, routers, links, name=os.uname().nodename, source=source)
