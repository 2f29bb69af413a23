"""A machine described by a line of text, ``2x RTX3090, RTX3060, 64 GB DDR5-5600``, or by a short TOML file."""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlplacer.core.errors import FileFormatError, InputError
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.core.units import parse_quantity
from dlplacer.files.text import read_text
from dlplacer.machines.costs.device_table import CORE, DEVICE_TABLE, Figure, known_type, unknown_type
from dlplacer.machines.importers.products import PCIE_HOP_LATENCY_S, device_of_type, pcie_slot_bytes_per_s

CHANNELS = Figure(2, "desktops have two channels of 64 bits; write 8x DDR5-4800 for a server of eight")
CORES = Figure(8, "cores that compute on weights in RAM; reading them is the limit of a decode step, not arithmetic")
NETWORKS: Mapping[str, tuple[float, float, str]] = {
    "1gbe": (0.117e9, 100e-6, "94 % of the line rate in frames of 1,500 bytes; 100 us is usual for TCP on a LAN"),
    "2.5gbe": (0.294e9, 80e-6, "as 1gbe"),
    "10gbe": (1.17e9, 50e-6, "as 1gbe"),
    "25gbe": (2.9e9, 20e-6, "as 1gbe"),
    "100gbe": (11.7e9, 5e-6, "as 1gbe, with RDMA"),
    "wifi": (0.06e9, 3e-3, "an assumption: half of a link rate of 960 Mbit/s, and the waiting for the air"),
    "thunderbolt": (2.7e9, 300e-6, "an assumption: 22 Gbit/s of IP over Thunderbolt 4"),
}
"""Name of a network → bytes per second, latency and source; all are assumptions until they are measured."""

_ITEM = re.compile(r"(?:(\d{1,3})\s*(?:x|×|\*)\s*)?(.+)", re.IGNORECASE)
_RAM = re.compile(
    r"(?:(\d{1,3})\s*(?:x|×|\*)\s*)?(\d+)\s*(GB|GiB)\s+(?:(\d+)\s*x\s*)?(LP)?DDR(\d)X?-(\d{3,5})", re.IGNORECASE
)
_PCIE = re.compile(r"pcie\s*(\d)(?:\.0)?(?:\s*x\s*(\d{1,2}))?", re.IGNORECASE)
_GIB = 2**30


def read_description(path: Path) -> Topology:
    """The machine in a TOML file: ``hosts`` (a list of texts), and the parameters of `described_topology`.

    Raises FileFormatError if the file is not TOML or has other keys; other errors are those of `described_topology`.
    """
    wanted = 'write hosts = ["2x RTX3090, 64 GB DDR5-5600"]; name, link, network and [used] may follow'
    try:
        told: dict[str, Any] = tomllib.loads(read_text(path, 2**20))
        hosts, used = told.pop("hosts"), told.pop("used", {})
        name = told.pop("name", path.stem)
        topology = described_topology("; ".join(hosts), used={key: str(size) for key, size in used.items()}, **told)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(str(path), [f"it describes no machine ({error}); {wanted}"]) from error
    return replace(topology, name=str(name))


def described_topology(
    text: str, link: str | None = None, network: str | None = None, used: Mapping[str, str] | None = None
) -> Topology:
    """The machine that a line of text describes: hosts separated by ``;``, their devices and memory by commas.

    `used`: Device or type → memory in use, which is subtracted; ``""`` stands for every device.

    Raises InputError if a name is not in the device table (it lists similar names) or a size or rate cannot be read.
    """
    hosts = [host for host in text.split(";") if host.strip()]
    if not hosts:
        raise InputError('the machine is empty; write for example "2x RTX3090, RTX3060, 64 GB DDR5-5600"')
    devices: list[Device] = []
    links: list[Link] = []
    routers: list[Router] = []
    for number, host in enumerate(hosts):
        prefix = f"host{number}-" if len(hosts) > 1 else ""
        added = _devices(host, prefix, sum(device.asynchronous for device in devices))
        if prefix:
            added = [replace(device, meta={**device.meta, "host": prefix[:-1]}) for device in added]
        devices += added
        routers.append(Router(f"{prefix}bus"))
        links += [_bus(device, f"{prefix}bus", link) for device in added]
    if len(hosts) > 1:
        routers.append(Router("network"))
        rate, latency_s = _network(network)
        links += [Link(f"host{number}-bus", "network", rate, latency_s / 2) for number in range(len(hosts))]
    elif network is not None:
        raise InputError(f"network is {network!r}, but the machine is one host; separate hosts by ';'")
    links, routers = (links, routers) if len(devices) > 1 else ([], [])
    source = "described in words; links and RAM are assumptions until they are measured"
    return Topology(_less(devices, used or {}), tuple(routers), tuple(links), text.strip(), source)


def _less(devices: list[Device], used: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices with only the memory that is not yet in use."""
    known = {""}.union(*({device.id, device.type} for device in devices))
    if stray := used.keys() - known:
        raise InputError(f"used names {min(stray)!r}, which is not a device; use {', '.join(sorted(known - {''}))}")
    left = []
    for device in devices:
        text = used.get(device.id, used.get(device.type, used.get("")))
        taken = 0 if text is None else int(_quantity("used", text, "bytes", "1 GiB"))
        if taken and taken >= (device.memory_bytes or 0):
            raise InputError(f"used is {text} of {device.id}, which leaves no memory; give the memory in use")
        free = replace(device, memory_bytes=(device.memory_bytes or 0) - taken) if taken else device
        left.append(free)
    return tuple(left)


def _devices(host: str, prefix: str, gpus: int) -> list[Device]:
    found: list[Device] = []
    for item in filter(None, (part.strip() for part in host.split(","))):
        ram = _RAM.fullmatch(item)
        if ram is not None:
            if not all(device.asynchronous for device in found):
                raise InputError(f"a host has one memory, and {item!r} is a second; write their sum as 64 GB DDR5-5600")
            found.append(_ram(ram, prefix))
            continue
        match = _ITEM.fullmatch(item)
        assert match is not None
        name = match[2].strip()
        if known_type(name) in (None, CORE):
            raise InputError(f"{unknown_type(name)} Memory of the host is written as 64 GB DDR5-5600")
        if int(match[1] or 1) < 1:
            raise InputError(f"{item!r} gives no device; write their number, such as 2x {name}, or leave it out")
        for _ in range(int(match[1] or 1)):
            found.append(device_of_type(f"{prefix}gpu{gpus}", name))
            gpus += 1
            if not found[-1].memory_bytes:
                raise InputError(f"the memory of {name!r} is not known; write it after the name: {name} 32GB")
    if not found:
        raise InputError("a host has no devices; name its GPUs or its memory")
    return found


def _ram(found: re.Match[str], prefix: str) -> Device:
    modules, size, _, channels, low_power, generation, transfers = found.groups()
    count = int(channels or CHANNELS.value)
    kind = f"{count}x{'LP' if low_power else ''}DDR{generation}-{transfers}"
    core = DEVICE_TABLE[CORE]
    flops = {dtype: CORES.value * rate for dtype, rate in core.flops_per_s.items()}
    meta = {"assumed": f"{CORES.value:g} cores; {count} channels of 8 bytes"}
    rate, capacity = count * 8 * float(transfers) * 1e6, int(modules or 1) * int(size) * _GIB
    if not capacity or not rate:
        raise InputError(f"{found[0]!r} is not a memory; write its size and rate, such as 64 GB DDR5-5600")
    return Device(f"{prefix}ram", kind, capacity, flops, rate, meta, asynchronous=False)


def _bus(device: Device, bus: str, link: str | None) -> Link:
    """The link of a device to its host; RAM's link has the rate of its channels, so a GPU's link limits transfers."""
    latency_s = PCIE_HOP_LATENCY_S.value
    if not device.asynchronous:
        return Link(device.id, bus, device.memory_bytes_per_s or 1e9, latency_s)
    if link is None:
        entry = DEVICE_TABLE[device.type]
        # Apple's GPUs have no slot: the host reads their data from unified memory.
        rate = pcie_slot_bytes_per_s(entry.pcie) if entry.pcie else entry.memory_bytes_per_s
        return Link(device.id, bus, rate, latency_s)
    if (slot := _PCIE.fullmatch(link.strip())) is not None:
        if slot[1] not in "123456" or int(slot[2] or 16) not in (1, 2, 4, 8, 16):
            raise InputError(f"link {link!r} is not a slot; write pcie1 to pcie6, with x1, x2, x4, x8 or x16: pcie3x8")
        return Link(device.id, bus, pcie_slot_bytes_per_s(int(slot[1]), int(slot[2] or 16)), latency_s)
    return Link(device.id, bus, _quantity("link", link, "bytes_per_s", "pcie4, pcie3x8"), latency_s)


def _network(text: str | None) -> tuple[float, float]:
    if text is None:
        raise InputError(f"several hosts need a network; give one of {', '.join(NETWORKS)}, or a rate as '1 Gbit/s'")
    known = NETWORKS.get(text.strip().lower())
    if known is not None:
        return known[:2]
    rate, _, latency = text.partition(",")
    found = _quantity("network", rate, "bytes_per_s", ", ".join(NETWORKS))
    return found, _quantity("network", latency, "seconds", "1 Gbit/s, 100us") if latency.strip() else 100e-6


def _quantity(name: str, text: str, dimension: str, others: str) -> float:
    try:
        found = parse_quantity(text, dimension)
    except ValueError as error:
        raise InputError(f"{name}: {error}; or write {others}") from error
    if not 0 <= found < math.inf or (dimension == "bytes_per_s" and not found):
        raise InputError(f"{name} is {text!r}; give a positive number, or {others}")
    return found
