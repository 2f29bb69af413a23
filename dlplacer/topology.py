"""The hardware graph: devices N, routers R, links L, rates B(l), latencies L(l) and capacities Mem(n) of Table 2."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dlplacer.errors import InputError


@dataclass(frozen=True)
class Device:
    """A compute node n that runs ops.

    Attributes
    ----------
    id
        Unique name.
    type
        Devices of one type run every op in the same time.
    memory_bytes
        Mem(n); None if unlimited.
    flops_per_s
        Peak rate, one number or a number per dtype, for the roofline.
    memory_bytes_per_s
        Rate of the device's own memory, for the roofline.
    """

    id: str
    type: str = "device"
    memory_bytes: int | None = None
    flops_per_s: float | Mapping[str, float] | None = None
    memory_bytes_per_s: float | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.memory_bytes is not None:
            _require(self.memory_bytes >= 0, f"device {self.id!r}", "memory_bytes", self.memory_bytes, "at least 0")
        rates = self.flops_per_s if isinstance(self.flops_per_s, Mapping) else {"": self.flops_per_s}
        for dtype, rate in rates.items():
            if rate is not None:
                label = f"flops_per_s[{dtype}]" if dtype else "flops_per_s"
                _require(rate > 0, f"device {self.id!r}", label, rate, "positive")
        if self.memory_bytes_per_s is not None:
            _require(
                self.memory_bytes_per_s > 0,
                f"device {self.id!r}",
                "memory_bytes_per_s",
                self.memory_bytes_per_s,
                "positive",
            )


@dataclass(frozen=True)
class Router:
    """A node r that only forwards: a switch, a bridge, a host."""

    id: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    """A physical link l between two nodes; it carries data in both directions.

    Attributes
    ----------
    bytes_per_s
        Effective rate of one link in one direction.
    latency_s
        L(l) of eq. 11.
    duplex
        ``full``: both directions at once; ``half``: one at a time.
    count
        Bonded links: together they carry count × bytes_per_s.
    """

    source: str
    target: str
    bytes_per_s: float
    latency_s: float = 0.0
    duplex: str = "full"
    count: int = 1
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        owner = f"link {self.source!r} – {self.target!r}"
        _require(self.bytes_per_s > 0, owner, "bytes_per_s", self.bytes_per_s, "positive")
        _require(self.latency_s >= 0, owner, "latency_s", self.latency_s, "at least 0")
        _require(self.count >= 1, owner, "count", self.count, "at least 1")
        if self.duplex not in ("full", "half"):
            raise InputError(f"{owner}: duplex is {self.duplex!r}; use full or half")
        if self.source == self.target:
            raise InputError(f"{owner}: a link joins two different nodes; remove it")

    @property
    def total_bytes_per_s(self) -> float:
        """B(l): the rate of all bonded links together, in one direction."""
        return self.bytes_per_s * self.count


@dataclass(frozen=True)
class Topology:
    """A machine, checked at birth: unique names, links between known nodes, at least one device.

    Raises
    ------
    InputError
        If there is no device, a name is given twice, a link ends nowhere or is given twice.
    """

    devices: tuple[Device, ...]
    routers: tuple[Router, ...] = ()
    links: tuple[Link, ...] = ()
    name: str = ""
    source: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.devices:
            raise InputError("the topology has no devices; add a node of kind 'device'")
        names = [node.id for node in (*self.devices, *self.routers)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InputError(f"node {repeated[0]!r} is given twice; rename one")
        seen: set[frozenset[str]] = set()
        for link in self.links:
            for end in (link.source, link.target):
                if end not in names:
                    raise InputError(f"link {link.source!r} – {link.target!r} names node {end!r}, which is not there")
            ends = frozenset((link.source, link.target))
            if ends in seen:
                raise InputError(
                    f"link {link.source!r} – {link.target!r} is given twice; bond equal links with 'count', or put a "
                    "router on one of two different ways"
                )
            seen.add(ends)

    @cached_property
    def device_index(self) -> Mapping[str, int]:
        """Device id → position in `devices`."""
        return {device.id: position for position, device in enumerate(self.devices)}

    def device(self, device_id: str) -> Device:
        """The device of this id; KeyError if there is none."""
        return self.devices[self.device_index[device_id]]

    @cached_property
    def link_between(self) -> Mapping[tuple[str, str], Link]:
        """Ordered pair of neighbouring nodes → the link that joins them; both directions are listed."""
        pairs: dict[tuple[str, str], Link] = {}
        for link in self.links:
            pairs[link.source, link.target] = link
            pairs[link.target, link.source] = link
        return pairs

    @property
    def device_types(self) -> tuple[str, ...]:
        """The types of the devices, each once, in order of appearance."""
        return tuple(dict.fromkeys(device.type for device in self.devices))

    def to_networkx(self) -> Any:
        """A networkx Graph whose nodes carry their `Device` or `Router` and whose edges carry their `Link`."""
        import networkx as nx

        graph = nx.Graph(name=self.name)
        graph.add_nodes_from((node.id, {"node": node}) for node in (*self.devices, *self.routers))
        graph.add_edges_from((link.source, link.target, {"link": link}) for link in self.links)
        return graph


def _require(holds: bool, owner: str, name: str, value: float, rule: str) -> None:
    if not holds or not math.isfinite(value):
        raise InputError(f"{owner}: {name} is {value}; it must be finite and {rule}")
