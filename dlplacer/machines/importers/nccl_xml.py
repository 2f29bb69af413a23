"""NCCL's topology file (``NCCL_TOPO_DUMP_FILE``): sockets, PCIe trees, GPUs, NVLinks and network devices."""

import re
from collections import Counter
from itertools import combinations
from xml.etree import ElementTree

from dlplacer.core.errors import FileFormatError
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.files.fields import built
from dlplacer.machines.importers.products import (
    HWLOC,
    NVLINK_LATENCY_S,
    PCIE_HOP_LATENCY_S,
    SOCKET_LATENCY_S,
    TYPE_OF_GFX,
    TYPE_OF_SM,
    GivenTypes,
    assumed_links,
    device_of_type,
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
    level: list[ElementTree.Element] = [root]
    for _ in range(_MAX_DEPTH):
        level = [child for element in level for child in element]
    if level:
        raise FileFormatError(where, [f"elements are nested more than {_MAX_DEPTH} levels deep; no machine is"])
    return built(where, lambda: _Machine(types).topology(root, where, name))


def _whole(text: str) -> int | None:
    """The number of at most nine digits that a text is, or None."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _socket_rate(cpu: ElementTree.Element) -> float:
    vendor, model = cpu.get("vendor", ""), _whole(cpu.get("modelid", ""))
    if vendor == "GenuineIntel" and cpu.get("familyid") == "6" and model is not None:
        return next(rate for least, rate in _INTEL_BYTES_PER_S if model >= least)
    return _SOCKET_BYTES_PER_S.get(vendor, _SOCKET_BYTES_PER_S.get(cpu.get("arch", ""), 10e9))


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


class _Machine:
    """The devices, routers and links that a walk over the file collects, and its mistakes.

    GPUs and the targets of NVLinks are known by their host and bus, as equal machines have equal buses.
    """

    def __init__(self, types: GivenTypes) -> None:
        self.types = types
        self.devices: dict[str, Device] = {}
        self.routers: dict[str, Router] = {}
        self.links: list[Link] = []
        self.gpu_at: dict[tuple[str, str], str] = {}
        self.nvlinks: list[tuple[str, tuple[str, str], int, str]] = []
        self.sockets: dict[str, list[tuple[str, float]]] = {}
        self.network: list[Link] = []
        self.assumed: dict[str, str] = {}
        self.mistakes: list[str] = []

    def topology(self, root: ElementTree.Element, where: str, name: str) -> Topology:
        for cpu in root.iter("cpu"):
            self._read_cpu(cpu)
        if not self.devices and not self.mistakes:
            self.mistakes.append("no <gpu> element; dump the file on a machine with GPUs")
        if not self.mistakes:
            self.types.require_used({gpu: gpu.replace("gpu", "") for gpu in self.devices})
            for sockets in self.sockets.values():
                for (one, rate), (other, other_rate) in combinations(sockets, 2):
                    self.links.append(Link(one, other, min(rate, other_rate), SOCKET_LATENCY_S.value))
            self._join_nvlinks()
        if self.mistakes:
            raise FileFormatError(where, self.mistakes)
        if linked := dict.fromkeys(gpu for gpu, *_ in self.nvlinks):
            self.assumed["nvlink"] = assumed_links(self.devices[gpu] for gpu in linked)
        if len(self.sockets) > 1 and self.network:
            self.routers[_NETWORK] = Router(_NETWORK)
            self.links += self.network
        elif len(self.sockets) > 1:
            self.assumed["network"] = f"no network device joins the {len(self.sockets)} hosts of the file"
        return Topology(
            tuple(self.devices.values()),
            tuple(self.routers.values()),
            tuple(self.links),
            name=name,
            source="NCCL topology file; rates of NVLinks and sockets by NCCL's constants",
            meta={"assumed": self.assumed},
        )

    def _read_cpu(self, cpu: ElementTree.Element) -> None:
        own = self.sockets.setdefault(cpu.get("host_hash", ""), [])
        host = list(self.sockets).index(cpu.get("host_hash", ""))
        prefix = f"host{host}." if host else ""
        name = f"{prefix}cpu{cpu.get('numaid', '0')}"
        while name in self.routers:
            name += "'"
        self.routers[name] = Router(name)
        own.append((name, _socket_rate(cpu)))
        for child in cpu:
            self._read_pci(child, name, prefix)

    def _read_pci(self, element: ElementTree.Element, above: str, prefix: str) -> None:
        """A PCIe device: a GPU, a network card, or a switch that leads to some."""
        if element.tag == "nic":
            self._read_nic(element, above, None)
        if element.tag != "pci":
            return
        bus, width = element.get("busid", "").lower(), element.get("link_width", "")
        if not _BUS.fullmatch(bus):
            self.mistakes.append(
                f"<pci busid={element.get('busid', '')!r}>: the bus id is not of the form 0000:1a:00.0"
            )
            return
        if width and _whole(width) is None:
            self.mistakes.append(f"<pci busid={bus!r}>: link_width is {width!r}; it must be a whole number")
        # NCCL writes an empty speed or a width of 0 for devices that do not tell: it takes generation 3 and 16 lanes.
        speed = _SPEED.search(element.get("link_speed", ""))
        rate = pcie_bytes_per_s(float(speed.group(1)) if speed else 8.0, _whole(width) or 16)
        gpu, nic = element.find("gpu"), element.find("nic")
        if gpu is not None:
            self._read_gpu(gpu, bus, above, rate, prefix)
        elif nic is not None:
            self._read_nic(nic, above, rate)
        elif any(True for tag in ("gpu", "net") for _ in element.iter(tag)):
            name = f"{prefix}pcie-{bus}"
            self.routers[name] = Router(name)
            self.links.append(Link(name, above, rate, PCIE_HOP_LATENCY_S.value))
            for child in element:
                self._read_pci(child, name, prefix)

    def _read_gpu(self, gpu: ElementTree.Element, bus: str, above: str, rate: float, prefix: str) -> None:
        for attribute in ("dev", "sm"):
            if _whole(gpu.get(attribute, "")) is None:
                given = gpu.get(attribute, "")
                self.mistakes.append(f"<gpu> at {bus}: {attribute} is {given!r}; it must be a whole number")
                return
        number = gpu.get("dev", "")
        name = f"{prefix}gpu{number}"
        if name in self.devices:
            self.mistakes.append(f"<gpu> at {bus}: dev {number} is given twice")
            return
        kind = self.types.of(name, f"{prefix}{number}")
        if kind is None:
            kind, capability = _usual_type(gpu)
            self.assumed[kind] = f"the usual GPU of {capability}"
        self.devices[name] = device_of_type(name, kind, meta={"busid": bus})
        self.gpu_at[prefix, bus] = name
        self.links.append(Link(name, above, rate, PCIE_HOP_LATENCY_S.value))
        for nvlink in (*gpu.findall("nvlink"), *gpu.findall("xgmi")):
            if links := self._count(nvlink, name, "count", ""):
                place = prefix, nvlink.get("target", "").lower()
                self.nvlinks.append((name, place, links, nvlink.get("tclass", "").lower()))
        for c2c in gpu.findall("c2c"):
            bandwidth, count = self._count(c2c, name, "bw", ""), self._count(c2c, name, "count", "1")
            # The chip-to-chip link replaces the route over PCIe to the CPU that it leads to.
            if bandwidth and count:
                self.links[-1] = Link(name, above, bandwidth * 1e6, NVLINK_LATENCY_S.value, count=count)

    def _count(self, element: ElementTree.Element, gpu: str, attribute: str, usual: str) -> int | None:
        given = element.get(attribute, usual)
        if not _whole(given):
            told = f"{attribute} is {given!r}; it must be a whole number of at least 1"
            self.mistakes.append(f"<{element.tag}> of {gpu}: {told}")
        return _whole(given)

    def _read_nic(self, nic: ElementTree.Element, above: str, rate: float | None) -> None:
        for net in nic.findall("net"):
            speed = _whole(net.get("speed", ""))
            latency = net.get("latency", "0")
            if above in self.routers and speed:
                own = speed * 1e6 / 8
                latency_s = float(latency) * 1e-6 if _LATENCY.fullmatch(latency) else 0.0
                self.network.append(Link(above, _NETWORK, min(own, rate or own), latency_s))
        merged = Counter((link.source, link.bytes_per_s, link.latency_s) for link in self.network)
        best: dict[str, Link] = {}
        for (source, bytes_per_s, latency_s), count in merged.items():
            if source not in best or bytes_per_s * count > best[source].total_bytes_per_s:
                best[source] = Link(source, _NETWORK, bytes_per_s, latency_s)
        # Ports behind one switch share its route up: they count as one link of that switch.
        self.network[:] = list(best.values())

    def _join_nvlinks(self) -> None:
        direct: Counter[tuple[str, str]] = Counter()
        switched: Counter[str] = Counter()
        to_cpu: Counter[str] = Counter()
        for name, place, count, kind in self.nvlinks:
            peer, target = self.gpu_at.get(place), place[1]
            if peer is not None and not kind.startswith("0x0680"):
                direct[name, peer] += count
            elif kind.startswith(_CPU_CLASS):
                to_cpu[name] += count
            elif kind.startswith(_NVSWITCH_CLASSES) or target.startswith("fffffff"):
                switched[name] += count
            else:
                self.mistakes.append(f"<nvlink> of {name}: target {target!r} is neither a GPU of the file nor a switch")
        # Each end tells its own; what only one of them has carries nothing both ways.
        pairs = {
            ends: min(count, direct.get(ends[::-1], count))
            for ends, count in direct.items()
            if ends[::-1] not in direct or ends < ends[::-1]
        }
        links, switches = nvlinks(self.devices, pairs, switched)
        self.links += links
        self.routers |= {switch.id: switch for switch in switches}
        for name, count in to_cpu.items():
            position = next(place for place, link in enumerate(self.links) if link.source == name)
            above = self.links[position].target
            self.links[position] = gpu_link(self.devices[name], above, count, NVLINK_LATENCY_S.value)
