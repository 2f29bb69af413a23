"""NCCL's topology file (``NCCL_TOPO_DUMP_FILE``): sockets, PCIe trees, GPUs and NVLinks."""

import re
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from dlplacer.core.errors import FileFormatError, InputError
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.files.fields import built
from dlplacer.machines.importers.products import (
    NVLINK_LATENCY_S,
    PCIE_HOP_LATENCY_S,
    SOCKET_LATENCY_S,
    SWITCH,
    TYPE_OF_GFX,
    TYPE_OF_SM,
    device_of_type,
    given_types,
    nvlinks,
    pcie_bytes_per_s,
)

_SPEED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4})?)\s*GT/s")
_SOCKET_BYTES_PER_S = {"GenuineIntel": 10e9, "AuthenticAMD": 16e9, "  Shanghai  ": 6e9, "arm64": 6e9, "ppc64": 32e9}
"""Rate between sockets by vendor or architecture (NCCL 2.30, src/graph/topo.h); 10 GB/s if neither is known."""
_INTEL_BYTES_PER_S = ((0xCF, 40e9), (0x8F, 22e9), (0x55, 10e9), (0, 6e9))
"""Least model number of Intel's family 6, bytes per second: Emerald Rapids, Sapphire Rapids, Skylake, older ones."""
_BUS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_NVSWITCH_CLASS, _CPU_CLASS = "0x068000", "0x068001"


def parse_nccl_xml(text: str, where: str, name: str, device_type: str | None) -> Topology:
    """The machine that NCCL, or AMD's RCCL, found: one host without its network cards.

    A GPU whose type is not given takes the usual type of its compute capability or gfx number, because the file holds
    nothing more about it; ``meta.assumed`` says so.

    Raises FileFormatError if the text is no such file (with the line) or has a document type, which could define
    entities; if only some GPUs are given types; or if a GPU has NVLinks that its type lacks.
    """
    if re.search(r"<!\s*(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise FileFormatError(where, ["a DOCTYPE or ENTITY is not accepted; NCCL writes none: remove it"])
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise FileFormatError(where, [f"line {error.position[0]}, column {error.position[1]}: {error}"]) from error
    if root.tag != "system":
        raise FileFormatError(where, [f"the outermost element is <{root.tag}>; NCCL's is <system>"])
    try:
        return built(where, lambda: _Machine(root).topology(name, device_type))
    except RecursionError:
        raise FileFormatError(where, ["elements are nested deeper than in any machine"]) from None


def _whole(element: Element, attribute: str, usual: str = "") -> int:
    """The value of an attribute, a whole number of at most nine digits."""
    given = element.get(attribute, usual)
    if not re.fullmatch(r"[0-9]{1,9}", given):
        raise InputError(f"<{element.tag}>: {attribute} is {given!r}; write up to nine digits")
    return int(given)


def _usual_type(gpu: Element) -> tuple[str, str]:
    """The usual type for a GPU's compute capability or, on AMD, gfx number, and the name of that capability."""
    given = gpu.get("gcn")
    if given is None:
        sm = _whole(gpu, "sm")
        return TYPE_OF_SM.get(sm, f"sm{sm}"), f"compute capability {sm / 10}"
    # RCCL writes the name gfx90a or, in older versions, 910, because the last digit is hexadecimal.
    gfx = given.removeprefix("gfx").partition(":")[0]
    gfx = "90a" if gfx == "910" else gfx
    return TYPE_OF_GFX.get(gfx, f"gfx{gfx}"), f"gfx{gfx}"


def _socket_rate(cpu: Element) -> float:
    vendor = cpu.get("vendor", "")
    if vendor == "GenuineIntel" and cpu.get("familyid") == "6" and cpu.get("modelid"):
        return next(rate for least, rate in _INTEL_BYTES_PER_S if _whole(cpu, "modelid") >= least)
    return _SOCKET_BYTES_PER_S.get(vendor, _SOCKET_BYTES_PER_S.get(cpu.get("arch", ""), 10e9))


class _Machine:
    """The GPUs, routers and links in the file; a bus id names the target of an NVLink."""

    def __init__(self, root: Element) -> None:
        self.gpus: dict[str, Element] = {}
        self.buses: dict[str, str] = {}
        self.routers: list[str] = []
        self.links: list[Link] = []
        self.ways_up: dict[str, Link] = {}
        if len({cpu.get("host_hash", "") for cpu in root.iter("cpu")}) > 1:
            raise InputError("the file has several hosts; import that of each, or join copies of one by a network")
        for cpu in root.iter("cpu"):
            name = f"cpu{cpu.get('numaid', '0')}"
            while name in self.routers:
                name += "'"
            self.routers.append(name)
            for child in cpu:
                self._read(child, name)
        sockets = zip(root.iter("cpu"), [name for name in self.routers if name.startswith("cpu")], strict=True)
        for (one, name), (other, peer) in combinations(sockets, 2):
            self.links.append(Link(name, peer, min(_socket_rate(one), _socket_rate(other)), SOCKET_LATENCY_S.value))

    def topology(self, name: str, device_type: str | None) -> Topology:
        """The machine; raises InputError for NVLinks with unknown targets or types that do not fit."""
        if not self.gpus:
            raise InputError("no <gpu> element; dump the file on a machine with GPUs")
        types = given_types(device_type, list(self.gpus))
        usual = {gpu: _usual_type(element) for gpu, element in self.gpus.items() if types[gpu] is None}
        devices = {
            gpu: device_of_type(gpu, types[gpu] or usual[gpu][0], meta={"busid": bus})
            for gpu, bus in self.buses.items()
        }
        ends = self._nvlinks(devices)
        routers = [*self.routers, *[SWITCH] * any(peer == SWITCH for _, peer, _ in ends)]
        return Topology(
            tuple(devices.values()),
            tuple(map(Router, routers)),
            (*self.ways_up.values(), *self.links, *nvlinks(ends)),
            name=name,
            source="NCCL topology file; rates of NVLinks and sockets by NCCL's constants",
            meta={"assumed": {kind: f"the usual GPU of {told}" for kind, told in usual.values()}},
        )

    def _read(self, element: Element, above: str) -> None:
        """Read a PCIe device: a GPU, or a switch above GPUs."""
        if element.tag != "pci":
            return
        bus, gpu = element.get("busid", "").lower(), element.find("gpu")
        if not _BUS.fullmatch(bus):
            raise InputError(f"<pci busid={bus!r}>: the bus id is not of the form 0000:1a:00.0")
        # An empty speed or a width of 0 is unknown; NCCL then assumes generation 3 and 16 lanes.
        speed = _SPEED.search(element.get("link_speed", ""))
        width = _whole(element, "link_width") if element.get("link_width") else 16
        rate = pcie_bytes_per_s(float(speed[1]) if speed else 8.0, width or 16)
        if gpu is not None:
            name = f"gpu{_whole(gpu, 'dev')}"
            if name in self.gpus:
                raise InputError(f"<gpu> at {bus}: dev {gpu.get('dev')} is given twice")
            self.gpus[name], self.buses[name] = gpu, bus
            self.ways_up[name] = Link(name, above, rate, PCIE_HOP_LATENCY_S.value)
            # The chip-to-chip link replaces the route over PCIe to the CPU that it leads to.
            for c2c in gpu.findall("c2c"):
                chip, count = _whole(c2c, "bw") * 1e6, _whole(c2c, "count", "1")
                self.ways_up[name] = Link(name, above, chip, NVLINK_LATENCY_S.value, count=count)
        elif element.find(".//gpu") is not None:
            self.routers.append(name := f"pcie-{bus}")
            self.links.append(Link(name, above, rate, PCIE_HOP_LATENCY_S.value))
            for child in element:
                self._read(child, name)

    def _nvlinks(self, devices: Mapping[str, Device]) -> list[tuple[Device, Device | str, int]]:
        """(GPU, its peer or the switch, number of links); links to a CPU replace the GPU's PCIe link to it."""
        gpu_at = {bus: gpu for gpu, bus in self.buses.items()}
        direct: Counter[tuple[str, str]] = Counter()
        switched: Counter[str] = Counter()
        for name, element in self.gpus.items():
            for link in (*element.findall("nvlink"), *element.findall("xgmi")):
                count, kind, target = _whole(link, "count"), link.get("tclass", ""), link.get("target", "").lower()
                peer = gpu_at.get(target)
                if peer is not None and not kind.startswith("0x0680"):
                    direct[name, peer] += count
                elif kind.startswith(_CPU_CLASS):
                    [self.ways_up[name]] = nvlinks([(devices[name], self.ways_up[name].target, count)])
                elif kind.startswith(_NVSWITCH_CLASS) or target.startswith("fffffff"):
                    switched[name] += count
                else:
                    raise InputError(f"<nvlink> of {name}: target {target!r} is no GPU of the file; correct it")
        # Each end lists its own links; if the counts differ, only the smaller number carries data both ways.
        pairs = {
            ends: min(count, direct.get(ends[::-1], count))
            for ends, count in direct.items()
            if ends[::-1] not in direct or ends < ends[::-1]
        }
        joined = [(devices[one], devices[other], count) for (one, other), count in pairs.items()]
        return [*joined, *((devices[name], SWITCH, count) for name, count in switched.items())]
