"""The plan of one replica as all ranks run it together: what a run over ranks is drawn and reported as."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.core.topology import Device, Link
from dlplacer.runtime.distributed.ranks import NETWORK, Ranks


@dataclass(frozen=True)
class Names:
    """What the ops and devices of one replica are called among those of all.

    Attributes
    ----------
    prefix
        Of every op and tensor: ``replica1/``, or nothing if there is one replica.
    devices
        Device of the plan → ``rank2/d0``; and ``network@rank0``, the part of the network that the first rank of a
        replica runs, → ``rank2/network``.
    """

    replica: int
    prefix: str
    devices: Mapping[str, str]

    def op(self, op: str) -> str:
        """The name of an op or of a tensor."""
        return self.prefix + op


def names_of(ranks: Ranks, replica: int) -> Names:
    """The names of one of the replicas that run over ranks."""
    devices = {device: f"rank{owner.rank}/{device}" for device, owner in ranks.owners[replica].items()}
    for part in ranks.networks:
        devices[part] = f"rank{ranks.rank_of(part, replica)}/{NETWORK}"
    return Names(replica, f"replica{replica}/" if ranks.replicas > 1 else "", devices)


def side_by_side(plan: Plan, ranks: Ranks) -> Plan:
    """The plan on the devices of all replicas, each replica with the same times.

    The network is a device of every rank, since every rank runs the collectives of its own devices. With several
    replicas every op has its copies. `Names` says what everything is called.

    Parameters
    ----------
    plan
        On a topology without routers, as one is that was measured from device to device.
    """
    copies = [_Copy(plan, ranks, names_of(ranks, replica)) for replica in range(ranks.replicas)]
    topology = replace(
        plan.topology,
        devices=tuple(device for copy in copies for device in copy.devices()),
        links=tuple(copy.link(link) for copy in copies for link in plan.topology.links),
    )
    graph = OpGraph(
        tuple(copy.op(op) for copy in copies for op in plan.graph.ops),
        tuple(copy.edge(edge) for copy in copies for edge in plan.graph.edges),
        name=plan.graph.name,
        source=plan.graph.source,
    )
    return replace(
        plan,
        graph=graph,
        topology=topology,
        ops=tuple(copy.scheduled(entry) for copy in copies for entry in plan.ops),
        transfers=tuple(copy.transfer(entry) for copy in copies for entry in plan.transfers),
        memory={},
    )


@dataclass(frozen=True)
class _Copy:
    plan: Plan
    ranks: Ranks
    names: Names

    def devices(self) -> Iterator[Device]:
        for device in self.plan.topology.devices:
            parts = [device.id]
            if device.id == NETWORK:
                parts = self.ranks.networks
            yield from (replace(device, id=self.names.devices[part]) for part in parts)

    def op(self, op: Op) -> Op:
        """The op, allowed on any device: those that it names have other names here."""
        group = None if op.colocate is None else self.names.op(op.colocate)
        return replace(op, id=self.names.op(op.id), colocate=group, devices=None)

    def edge(self, edge: Edge) -> Edge:
        source, target, tensor = map(self.names.op, (edge.source, edge.target, edge.tensor))
        return replace(edge, source=source, target=target, tensor=tensor)

    def link(self, link: Link) -> Link:
        source, target = self._hop((link.source, link.target))
        return replace(link, source=source, target=target)

    def scheduled(self, entry: ScheduledOp) -> ScheduledOp:
        place = entry.device
        if place == NETWORK:
            place = self._network_near(str(self.plan.graph.op(entry.op).attrs["device"]))
        return replace(entry, op=self.names.op(entry.op), device=self.names.devices[place])

    def transfer(self, entry: Transfer) -> Transfer:
        segments = tuple(replace(part, route=tuple(map(self._hop, part.route))) for part in entry.segments)
        target = segments[-1].route[-1][1]
        tensor, source = self.names.op(entry.tensor), self.names.op(entry.source)
        return replace(entry, tensor=tensor, source=source, target=target, segments=segments)

    def _hop(self, hop: tuple[str, str]) -> tuple[str, str]:
        source, target = hop
        if source == NETWORK:
            source = self._network_near(target)
        elif target == NETWORK:
            target = self._network_near(source)
        return self.names.devices[source], self.names.devices[target]

    def _network_near(self, device: str) -> str:
        return self.ranks.network_of(device)
