"""The hardware graph: devices N, routers R, links L, and B(l), L(l) and Mem(n) of table 2 of Pal et al. 2019."""

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any

from dlplacer.core.abilities import Shown
from dlplacer.core.errors import InputError
from dlplacer.core.expect import printable, short_name, unknown
from dlplacer.core.graph import reference_mistakes
from dlplacer.core.record import Bytes, BytesPerSecond, Name, Number, OneOf, Record, Seconds, record

Rates = Annotated[float | Mapping[str, float], Number("flops_per_s", positive=True, named=True)]


@record(frozen=True, repr=False)
class Device(Record):
    """A compute node n that runs ops; devices of one type run every op in the same time.

    Attributes
    ----------
    memory_bytes
        Mem(n); None if unlimited.
    flops_per_s, memory_bytes_per_s
        For the roofline: the peak rate (one number, or one per dtype), and the rate of the device's own memory.
    dispatch_s
        Seconds that the host process needs to issue an op that takes time; None if unknown, which counts as 0.
    process
        Name of the host process, which issues one op at a time for its devices; if "", the device has its own process.
    asynchronous
        True if ops are issued ahead and queue at the device, as on GPUs. Otherwise an op runs inside the call that
        issues it, and its time includes that call, as on CPU cores. See `dlplacer.problem.dispatch`.
    """

    id: Name
    type: Name = "device"
    memory_bytes: Bytes | None = None
    flops_per_s: Rates | None = None
    memory_bytes_per_s: BytesPerSecond | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    dispatch_s: Seconds | None = None
    process: str = ""
    asynchronous: bool = True


@record(frozen=True, repr=False)
class Router(Record):
    """A node r that only forwards: a switch, a bridge, a host."""

    id: Name
    meta: Mapping[str, Any] = field(default_factory=dict)


@record(frozen=True, repr=False)
class Link(Record):
    """A physical link l between two nodes; it carries both directions at once, or one at a time with ``half`` duplex.

    `bytes_per_s` is the effective rate of one link in one direction, `latency_s` is L(l) of eq. 11, and `count` bonded
    links carry count × bytes_per_s together.
    """

    source: Name
    target: Name
    bytes_per_s: BytesPerSecond
    latency_s: Seconds = 0.0
    duplex: Annotated[str, OneOf(("full", "half"))] = "full"
    count: Annotated[int, Number(at_least=1, whole=True)] = 1
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.total_bytes_per_s > sys.float_info.max:
            raise InputError(f"{self.label}: count is {self.count}; the rate of all together is not finite")
        if self.source == self.target:
            raise InputError(f"{self.label}: a link joins two different nodes; remove it")

    @property
    def label(self) -> str:
        return f"link {self.source!r} – {self.target!r}"

    @property
    def total_bytes_per_s(self) -> float:
        """B(l): the rate of all bonded links together, in one direction."""
        return self.bytes_per_s * self.count

    def direction(self, hop: tuple[str, str]) -> tuple[str, str]:
        """The link direction that a hop uses; both hops of a half-duplex link use the one in name order."""
        return hop if self.duplex == "full" else (min(hop), max(hop))


@record(frozen=True, repr=False)
class Topology(Shown, Record):
    """A machine, validated on construction: unique names, links between known nodes, at least one device.

    >>> dp.Topology(
    ...     devices=[dp.Device("gpu0", "V100", 16 * 2**30), dp.Device("gpu1", "V100", 16 * 2**30)],
    ...     links=[dp.Link("gpu0", "gpu1", bytes_per_s=20e9, latency_s=2e-6)],
    ...     name="pair",
    ... )
    <Topology 'pair': 2 V100, 0 routers, 1 link>

    Raises InputError if there is no device, a name is given twice, or a link names an unknown node or is given twice.
    """

    devices: tuple[Device, ...]
    routers: tuple[Router, ...] = ()
    links: tuple[Link, ...] = ()
    name: str = ""
    source: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mistakes = [*reference_mistakes("node", self.nodes, self.links)]
        if not self.devices:
            mistakes.append("the topology has no devices; add a node of kind 'device'")
        joined = Counter(frozenset((link.source, link.target)) for link in self.links)
        mistakes += [
            f"nodes {' and '.join(map(repr, sorted(ends)))} have {count} links; bond equal ones with 'count', or put a "
            "router on one of two different routes"
            for ends, count in joined.items()
            if count > 1
        ]
        if mistakes:
            raise InputError("\n".join(mistakes))

    def __repr__(self) -> str:
        types = Counter(device.type for device in self.devices)
        named = [f"{count} {printable(kind)}" for kind, count in types.items()]
        devices = ", ".join([*named[:4], *["…"] * (len(named) > 4)])
        routers, links = len(self.routers), len(self.links)
        joined = f"{routers} router{'s' * (routers != 1)}, {links} link{'s' * (links != 1)}"
        return f"<Topology {short_name(self.name)}: {devices}, {joined}>"

    @property
    def nodes(self) -> tuple[Device | Router, ...]:
        """The devices, then the routers."""
        return (*self.devices, *self.routers)

    @cached_property
    def device_index(self) -> Mapping[str, int]:
        """Device id → position in `devices`."""
        return {device.id: position for position, device in enumerate(self.devices)}

    def device(self, device_id: str) -> Device:
        """The device of this id.

        Raises InputError if there is none; the message suggests devices with similar ids.
        """
        try:
            return self.devices[self.device_index[device_id]]
        except (KeyError, TypeError):
            raise unknown("device", device_id, self.device_index, f"topology {short_name(self.name)}") from None

    @cached_property
    def link_between(self) -> Mapping[tuple[str, str], Link]:
        """Ordered pair of neighbouring nodes → the link that joins them; both orders are keys."""
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
        graph.add_nodes_from((node.id, {"node": node}) for node in self.nodes)
        graph.add_edges_from((link.source, link.target, {"link": link}) for link in self.links)
        return graph
