"""The processes of a run: one process is a group of one, whose exchanges return what was put in."""

from collections.abc import Mapping, Sequence
from typing import Any

from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.measured_network import measured_machine
from dlplacer.runtime.distributed.replicate import with_exchange_times, with_network
from dlplacer.runtime.profile.link_times import measured_topology


class OneProcess:
    """A group of one process, with the links between its devices, timed when it is made.

    `all_reduce` is the line of an all-reduce between the replicas, None in a run that is not over ranks; `devices` are
    those of all processes, `replica_of` their replicas by rank. `topology` has the plan's devices in the plan's order,
    with their measured links.
    """

    rank, replicas = 0, 1
    all_reduce: AlphaBeta | None = None
    replica_of: Sequence[int] = (0,)

    def __init__(self, opened: Mapping[str, RuntimeDevice]) -> None:
        self.devices = tuple(device.name for device in opened.values())
        self.topology: Topology = measured_topology(opened)

    def gathered(self, value: Any) -> list[Any]:
        """[rank] → what it gives; every process gets there before any goes on."""
        return [value]

    def with_exchange(self, graph: OpGraph) -> OpGraph:
        """The graph whose collectives take what the measured all-reduce takes."""
        if self.replicas == 1 or self.all_reduce is None:
            return graph
        return with_exchange_times(graph, self.topology, self.all_reduce)


class SeveralProcesses(OneProcess):
    """The processes of a `RankGroup`, which measure together; `opened` are the devices of this one."""

    def __init__(self, group: RankGroup, opened: Mapping[str, RuntimeDevice], all_reduce: AlphaBeta) -> None:
        ranks = group.ranks
        self._group, self.all_reduce = group, all_reduce
        self.rank, self.replicas = group.rank, ranks.replicas
        self.devices = tuple(str(owner) for owners in ranks.owners for owner in owners.values())
        self.replica_of = [ranks.replica_of(rank) for rank in range(ranks.count)]
        machine = measured_machine(group, opened)
        self.topology = machine if ranks.replicas == 1 else with_network(machine)

    def gathered(self, value: Any) -> list[Any]:
        """As `RankGroup.gathered`."""
        return self._group.gathered(value)
