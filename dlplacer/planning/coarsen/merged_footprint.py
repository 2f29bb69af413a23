"""What a group of ops holds: outputs that outlive it, and the peak of what lives only inside."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.planning.coarsen.merged_outputs import Outputs


@dataclass(frozen=True, slots=True)
class JoinedMemory:
    """Outputs and workspace of a contracted op."""

    output_bytes: int
    workspace_bytes: int


def joined_memory(graph: OpGraph, members: Sequence[str], outputs: Outputs) -> JoinedMemory:
    """What members hold when they run one after another, each output until its last reader among them has run."""
    inside = {member: position for position, member in enumerate(members)}
    left: dict[str, list[int]] = {member: [] for member in members}
    for member, output in outputs.index:
        left[member].append(output)
    kept = {member: _kept_bytes(graph.op(member), left[member]) for member in members}
    ends: dict[int, list[int]] = {}
    alive = peak = 0
    for position, member in enumerate(members):
        op = graph.op(member)
        inner_bytes = op.output_bytes - kept[member]
        alive += inner_bytes
        peak = max(peak, alive + op.workspace_bytes)
        readers = [inside[edge.target] for edge in graph.edges_from[member] if edge.target in inside]
        ends.setdefault(max(readers, default=position), []).append(inner_bytes)
        alive -= sum(ends.pop(position, ()))
    return JoinedMemory(sum(kept.values()), peak)


def _kept_bytes(op: Op, left: Sequence[int]) -> int:
    """The part of an op's outputs that outlives the group, which it leaves by the outputs `left`."""
    if not op.outputs:
        return op.output_bytes if left else 0
    return min(op.output_bytes, sum(op.outputs[output].bytes for output in left))
