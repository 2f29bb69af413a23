"""The plan of one replica as all ranks run it together: what a run over ranks is drawn and reported as."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dlplacer.core.graph import Edge, Op, OpGraph
from dlplacer.core.plan import Plan, ScheduledOp, Transfer
from dlplacer.core.topology import Device, Link
from dlplacer.runtime.distributed.ranks import NETWORK, Ranks


@dataclass(frozen=True)
class Names:
    """What the ops and devices of one replica are called among those of all."""

    ranks: Ranks
    replica: int

    def op(self, op: str) -> str:
        """An op's or a tensor's: ``replica1/conv``, or its own if there is one replica."""
        return op if self.ranks.replicas == 1 else f"replica{self.replica}/{op}"

    def device(self, device: str) -> str:
        """A device's: ``rank2/d0``, or ``rank2/network`` for ``network@rank0``, that rank's part of the network."""
        rank = self.ranks.rank_of(device, self.replica)
        return f"rank{rank}/{NETWORK if device.startswith(f'{NETWORK}@') else device}"


def side_by_side(plan: Plan, ranks: Ranks) -> Plan:
    """The plan on the devices of all replicas, each replica with the same times.

    The network is a device of every rank, since every rank runs the collectives of its own devices. With several
    replicas every op has its copies. `Names` says what everything is called.

    Parameters
    ----------
    plan
        On a topology without routers, as one is that was measured from device to device.
    """
    copies = [_Copy(plan, ranks, Names(ranks, replica)) for replica in range(ranks.replicas)]
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
                parts = [_part(rank) for rank in range(self.ranks.per_replica)]
            yield from (replace(device, id=self.names.device(part)) for part in parts)

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
        return replace(entry, op=self.names.op(entry.op), device=self.names.device(place))

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
        return self.names.device(source), self.names.device(target)

    def _network_near(self, device: str) -> str:
        return _part(self.ranks.rank_of(device, 0))


def _part(rank: int) -> str:
    """The part of the network that a replica's rank runs, counted within the replica."""
    return f"{NETWORK}@rank{rank}"
