"""Groups of a graph's layers that send parameters or gradients together, compared with the groups of other policies."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dlplacer.core.abilities import Shown
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.data_parallel.groups.captured_chain import chain_of, gradients_of, serial_clock, unit_chain
from dlplacer.data_parallel.groups.ddp_buckets import caps_mb, gradient_chain, plan_buckets
from dlplacer.data_parallel.groups.group_plan import exchange_lines
from dlplacer.data_parallel.groups.layer_chain import LayerChain, best_groups
from dlplacer.data_parallel.groups.policies import Grouping, compare_groupings

_COLLECTIVE = {"forward": "all-gather", "backward": "all-reduce"}


@dataclass(frozen=True)
class Groups(Shown):
    """Groups of layers that send parameters or gradients together, for several policies, the optimum last.

    `caps_bytes` are bucket caps with which DistributedDataParallel builds these groups; None if they are not known.
    """

    direction: str
    collective: str
    devices: int
    chain: LayerChain
    policies: tuple[Grouping, ...]
    caps_bytes: tuple[int, ...] | None
    warnings: tuple[str, ...] = ()

    @property
    def group_bytes(self) -> list[int]:
        """Bytes of each group of the optimum."""
        return _group_bytes(self.chain, self.policies[-1].cuts)

    @property
    def bucket_caps_mb(self) -> list[float] | None:
        """``bucket_cap_mb_list`` for DistributedDataParallel; None if it is not known."""
        return None if self.caps_bytes is None else caps_mb(self.caps_bytes)

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer groups --json`` prints."""
        best = self.policies[-1]
        return {
            "direction": self.direction,
            "collective": self.collective,
            "cuts": list(best.cuts),
            "makespan_s": best.makespan_s,
            "groups": [list(self.chain.names[before:last]) for before, last in pairwise((0, *best.cuts))],
            "group_bytes": self.group_bytes,
            "bucket_cap_mb_list": self.bucket_caps_mb,
            "policies": {one.policy: {"cuts": list(one.cuts), "makespan_s": one.makespan_s} for one in self.policies},
        }


def groups_of(graph: OpGraph, machine: Topology, direction: str, cap_bytes: int | None, job: Any = None) -> Groups:
    """The groups of a graph with op times and, for gradients, DDP's bucket caps; `job` gives the gradients' order."""
    kind, carried_by = machine.devices[0].type, _COLLECTIVE[direction]
    line = exchange_lines(machine, sum(op.weight_bytes for op in graph.ops))[carried_by]
    caps: tuple[int, ...] | None = None
    warnings: tuple[str, ...] = ()
    if job is not None and direction == "forward":
        chain = unit_chain(graph, kind, job.parameter_uses(), line, direction)
    elif job is not None:
        gradients = gradients_of(graph, job.parameter_uses(), serial_clock(graph, kind, direction))
        chain, caps = gradient_chain(gradients, line), tuple(plan_buckets(gradients, line, cap_bytes).caps_bytes)
    else:
        chain = chain_of(graph, kind, line, direction)
        weights = (op for op in graph.ops if op.kind == "parameter" and op.gradient_bytes and op.outputs)
        dtypes = sorted({op.outputs[0].dtype for op in weights})
        if len(dtypes) > 1:
            unordered = "share no bucket, and a graph does not give the order in which they become ready"
            told = f"gradients of {' and '.join(dtypes)} {unordered}; give module:callable for DDP's bucket caps"
            warnings = (told,)
        elif direction == "backward":
            caps = tuple(reversed(_group_bytes(chain, best_groups(chain, cap_bytes))))
    policies = compare_groupings(chain, direction, cap_bytes)
    return Groups(direction, carried_by, len(machine.devices), chain, policies, caps, warnings)


def _group_bytes(chain: LayerChain, cuts: tuple[int, ...]) -> list[int]:
    return [sum(chain.bytes[before:last]) for before, last in pairwise((0, *cuts))]
