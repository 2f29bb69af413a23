"""NCCL's topology file (``NCCL_TOPO_DUMP_FILE``): sockets, PCIe trees, GPUs, NVLinks and network devices."""

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from xml.etree import ElementTree

from dlplacer.core.errors import FileFormatError
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.files.fields import built
from dlplacer.machines.importers.products import GivenTypes, device_of_type
from dlplacer.machines.importers.rates import (
    HWLOC,
    NVLINK_LATENCY_S,
    PCIE_HOP_LATENCY_S,
    SOCKET_LATENCY_S,
    TYPE_OF_GFX,
    TYPE_OF_SM,
    assumed_links,
    gpu_link,
    nvlinks,
    pcie_bytes_per_s,
)

_BUS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_SPEED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4})?)\s*GT/s")
_LATENCY = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_MAX_DEPTH = 64
_NVSWITCH_CLASSES, _CPU_CLASS = ("0x068000",), "0x068001"
_SOCKET_BYTES_PER_S = {"GenuineIntel": 10e9, "AuthenticAMD": 16e9, "  Shanghai  ": 6e9, "arm64": 6e9, "ppc64": 32e9}
"""Between sockets, by vendor or architecture (NCCL 2.30, src/graph/topo.h); 10 GB/s where neither is known."""
_INTEL_BYTES_PER_S = ((0xCF, 40e9), (0x8F, 22e9), (0x55, 10e9), (0, 6e9))
"""Least model number of Intel's family 6 → bytes per second: Emerald Rapids, Sapphire Rapids, Skylake, those before."""
_NETWORK = "network"


@dataclass
class _Found:
    """The devices, routers and links that a walk over the file collects.

    GPUs and the targets of NVLinks are known by their host and bus, as equal machines have equal buses.
    """

    devices: dict[str, Device] = field(default_factory=dict)
    routers: dict[str, Router] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    gpu_at: dict[tuple[str, str], str] = field(default_factory=dict)
    nvlinks: list[tuple[str, tuple[str, str], int, str]] = field(default_factory=list)
    sockets: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    network: list[Link] = field(default_factory=list)
    types: GivenTypes = field(default_factory=lambda: GivenTypes(None))
    assumed: dict[str, str] = field(default_factory=dict)


def parse_nccl_xml(text: str, where: str, name: str, types: GivenTypes) -> Topology:
    """The machine that NCCL, or AMD's RCCL, saw. Network devices join hosts where the file has several.

    A GPU without a given type takes the usual one of its compute capability or gfx number, which is all that the file
    tells; ``meta.assumed`` says so.

    Raises
    ------
    InputError
        If types are given to some GPUs only, or a GPU has NVLinks that its type does not have.
    FileFormatError
        If it is no such file, naming the line; a document type, which could define entities, is refused.
    """
    if re.search(r"<!DOCTYPE\s+topology|<topology[\s>]", text):
        raise FileFormatError(where, [HWLOC])
    if re.search(r"<!\s*(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise FileFormatError(where, ["a DOCTYPE or ENTITY is not accepted; NCCL writes none: remove it"])
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise FileFormatError(where, [f"line {error.position[0]}, column {error.position[1]}: {error}"]) from error
    if root.tag != "system":
        raise FileFormatError(where, [f"the outermost element is <{root.tag}>; NCCL's is <system>"])
    if _too_deep(root):
        raise FileFormatError(where, [f"elements are nested more than {_MAX_DEPTH} levels deep; no machine is"])
    return built(where, _topology, root, where, name, types)


def _topology(root: ElementTree.Element, where: str, name: str, types: GivenTypes) -> Topology:
    mistakes: list[str] = []
    found = _Found(types=types)
    for cpu in root.iter("cpu"):
        _read_cpu(cpu, found, mistakes)
    if not found.devices and not mistakes:
        mistakes.append("no <gpu> element; dump the file on a machine with GPUs")
    if mistakes:
        raise FileFormatError(where, mistakes)
    types.require_used({name: name.replace("gpu", "") for name in found.devices})
    _join_sockets(found)
    _join_nvlinks(found, where)
    if linked := {name for name, *_ in found.nvlinks}:
        found.assumed["nvlink"] = assumed_links(found.devices[name] for name in linked)
    if len(found.sockets) > 1 and not found.network:
        found.assumed["network"] = f"no network device joins the {len(found.sockets)} hosts of the file"
    if len(found.sockets) > 1 and found.network:
        found.routers[_NETWORK] = Router(_NETWORK)
        found.links += found.network
    return Topology(
        tuple(found.devices.values()),
        tuple(found.routers.values()),
        tuple(found.links),
        name=name,
        source="NCCL topology file; rates of NVLinks and sockets by NCCL's constants",
        meta={"assumed": found.assumed},
    )


def _too_deep(root: ElementTree.Element) -> bool:
    level: list[ElementTree.Element] = [root]
    for _ in range(_MAX_DEPTH):
        level = [child for element in level for child in element]
    return bool(level)


def _whole(text: str) -> int | None:
    """The number of at most nine digits that a text is, or None."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _read_cpu(cpu: ElementTree.Element, found: _Found, mistakes: list[str]) -> None:
    host = cpu.get("host_hash", "")
    hosts = [*found.sockets, host] if host not in found.sockets else list(found.sockets)
    prefix = f"host{hosts.index(host)}." if hosts.index(host) else ""
    name = f"{prefix}cpu{cpu.get('numaid', '0')}"
    while name in found.routers:
        name += "'"
    found.routers[name] = Router(name)
    found.sockets.setdefault(host, []).append((name, _socket_rate(cpu)))
    for child in cpu:
        _read_pci(child, name, prefix, found, mistakes)


def _socket_rate(cpu: ElementTree.Element) -> float:
    vendor, model = cpu.get("vendor", ""), _whole(cpu.get("modelid", ""))
    if vendor == "GenuineIntel" and cpu.get("familyid") == "6" and model is not None:
        return next(rate for least, rate in _INTEL_BYTES_PER_S if model >= least)
    return _SOCKET_BYTES_PER_S.get(vendor, _SOCKET_BYTES_PER_S.get(cpu.get("arch", ""), 10e9))


def _read_pci(element: ElementTree.Element, above: str, prefix: str, found: _Found, mistakes: list[str]) -> None:
    """A PCIe device: a GPU, a network card, or a switch that leads to some."""
    if element.tag == "nic":
        _read_nic(element, above, found, None)
        return
    if element.tag != "pci":
        return
    bus = element.get("busid", "")
    if not _BUS.fullmatch(bus.lower()):
        mistakes.append(f"<pci busid={bus!r}>: the bus id is not of the form 0000:1a:00.0")
        return
    rate = _pci_rate(element, bus, mistakes)
    gpu = element.find("gpu")
    if gpu is not None:
        _read_gpu(gpu, bus, above, rate, prefix, found, mistakes)
        return
    nic = element.find("nic")
    if nic is not None:
        _read_nic(nic, above, found, rate)
        return
    if any(True for _ in element.iter("gpu")) or any(True for _ in element.iter("net")):
        name = f"{prefix}pcie-{bus.lower()}"
        found.routers[name] = Router(name)
        found.links.append(Link(name, above, rate, PCIE_HOP_LATENCY_S.value))
        for child in element:
            _read_pci(child, name, prefix, found, mistakes)


def _pci_rate(element: ElementTree.Element, bus: str, mistakes: list[str]) -> float:
    speed = _SPEED.search(element.get("link_speed", ""))
    width = element.get("link_width", "")
    # NCCL writes an empty speed or a width of 0 for devices that do not tell: it takes generation 3 and 16 lanes.
    lanes = _whole(width) or 16
    if width and _whole(width) is None:
        mistakes.append(f"<pci busid={bus!r}>: link_width is {width!r}; it must be a whole number")
    return pcie_bytes_per_s(float(speed.group(1)) if speed else 8.0, lanes)


def _read_gpu(
    gpu: ElementTree.Element,
    bus: str,
    above: str,
    rate: float,
    prefix: str,
    found: _Found,
    mistakes: list[str],
) -> None:
    for attribute in ("dev", "sm"):
        if _whole(gpu.get(attribute, "")) is None:
            mistakes.append(f"<gpu> at {bus}: {attribute} is {gpu.get(attribute, '')!r}; it must be a whole number")
            return
    number = gpu.get("dev", "")
    name = f"{prefix}gpu{number}"
    if name in found.devices:
        mistakes.append(f"<gpu> at {bus}: dev {number} is given twice")
        return
    kind = found.types.of(name, f"{prefix}{number}")
    if kind is None:
        kind, capability = _usual_type(gpu)
        found.assumed[kind] = f"the usual GPU of {capability}"
    found.devices[name] = device_of_type(name, kind, meta={"busid": bus})
    found.gpu_at[prefix, bus.lower()] = name
    found.links.append(Link(name, above, rate, PCIE_HOP_LATENCY_S.value))
    for nvlink in (*gpu.findall("nvlink"), *gpu.findall("xgmi")):
        given = nvlink.get("count", "")
        links = _whole(given)
        if not links:
            mistakes.append(f"<{nvlink.tag}> of {name}: count is {given!r}; it must be a whole number of at least 1")
            continue
        kind = nvlink.get("tclass", "").lower()
        found.nvlinks.append((name, (prefix, nvlink.get("target", "").lower()), links, kind))
    for c2c in gpu.findall("c2c"):
        bandwidth, count = c2c.get("bw", ""), c2c.get("count", "1")
        if not _whole(bandwidth) or not _whole(count):
            mistakes.append(
                f"<c2c> of {name}: bw {bandwidth!r} and count {count!r} must be whole numbers of at least 1"
            )
            continue
        # The chip-to-chip link replaces the route over PCIe to the CPU that it leads to.
        found.links[-1] = Link(name, above, int(bandwidth) * 1e6, NVLINK_LATENCY_S.value, count=int(count))


def _usual_type(gpu: ElementTree.Element) -> tuple[str, str]:
    """The usual type of a GPU's compute capability or, on AMD, gfx number; and that capability."""
    given = gpu.get("gcn")
    if given is None:
        sm = int(gpu.get("sm", ""))
        return TYPE_OF_SM.get(sm, f"sm{sm}"), f"compute capability {sm / 10}"
    # RCCL writes gfx90a by name or, in older versions, as 910: its last digit is hexadecimal.
    gfx = given.removeprefix("gfx").partition(":")[0]
    gfx = "90a" if gfx == "910" else gfx
    return TYPE_OF_GFX.get(gfx, f"gfx{gfx}"), f"gfx{gfx}"


def _read_nic(nic: ElementTree.Element, above: str, found: _Found, rate: float | None) -> None:
    for net in nic.findall("net"):
        speed = _whole(net.get("speed", ""))
        latency = net.get("latency", "0")
        if above in found.routers and speed:
            own = speed * 1e6 / 8
            latency_s = float(latency) * 1e-6 if _LATENCY.fullmatch(latency) else 0.0
            found.network.append(Link(above, _NETWORK, min(own, rate or own), latency_s))
    merged = Counter((link.source, link.bytes_per_s, link.latency_s) for link in found.network)
    best: dict[str, Link] = {}
    for (source, bytes_per_s, latency_s), count in merged.items():
        if source not in best or bytes_per_s * count > best[source].total_bytes_per_s:
            best[source] = Link(source, _NETWORK, bytes_per_s, latency_s)
    # Ports behind one switch share its route up: they count as one link of that switch.
    found.network[:] = list(best.values())


def _join_sockets(found: _Found) -> None:
    for sockets in found.sockets.values():
        for (one, rate), (other, other_rate) in combinations(sockets, 2):
            found.links.append(Link(one, other, min(rate, other_rate), SOCKET_LATENCY_S.value))


def _join_nvlinks(found: _Found, where: str) -> None:
    direct: Counter[tuple[str, str]] = Counter()
    switched: Counter[str] = Counter()
    to_cpu: Counter[str] = Counter()
    for name, place, count, kind in found.nvlinks:
        peer, target = found.gpu_at.get(place), place[1]
        if peer is not None and not kind.startswith("0x0680"):
            direct[name, peer] += count
        elif kind.startswith(_CPU_CLASS):
            to_cpu[name] += count
        elif kind.startswith(_NVSWITCH_CLASSES) or target.startswith("fffffff"):
            switched[name] += count
        else:
            raise FileFormatError(
                where, [f"<nvlink> of {name}: target {target!r} is neither a GPU of the file nor a switch"]
            )
    # Each end tells its own; what only one of them has carries nothing both ways.
    pairs = {
        ends: min(count, direct.get(ends[::-1], count))
        for ends, count in direct.items()
        if ends[::-1] not in direct or ends < ends[::-1]
    }
    links, switches = nvlinks(found.devices, pairs, switched)
    found.links += links
    found.routers |= {switch.id: switch for switch in switches}
    for name, count in to_cpu.items():
        position = next(place for place, link in enumerate(found.links) if link.source == name)
        above = found.links[position].target
        found.links[position] = gpu_link(found.devices[name], above, count, NVLINK_LATENCY_S.value)
