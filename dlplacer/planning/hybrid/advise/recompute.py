"""Store or recompute: each module of a training step either keeps its inner activations or computes them again.

What other modules read in the forward pass is always stored, so that modules can choose independently and the choice is
the multiple-choice knapsack of eq. 6 with two alternatives for every module.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.machines.costs.roofline_times import required_time_s
from dlplacer.planning.hybrid.advise.layer_alternatives import Alternative

STORE, RECOMPUTE = "store", "recompute"
_GIVEN = ("parameter", "buffer", "input", "constant")


@dataclass(frozen=True)
class StepChoices:
    """A training step as a multiple-choice knapsack.

    Attributes
    ----------
    fixed_s
        Seconds of all ops, once.
    fixed_bytes
        Weights, gradients, state, inputs, activations read across modules, the largest workspace, and room for the
        inner activations of the largest module while it is computed again.
    alternatives
        Module path → its alternatives; modules without inner activations are left out.
    room_bytes
        Of `fixed_bytes`, that room: where smaller modules alone are computed again, less will do.
    """

    fixed_s: float
    fixed_bytes: int
    alternatives: Mapping[str, tuple[Alternative, ...]]
    room_bytes: int = 0


def step_choices(graph: OpGraph, device_type: str) -> StepChoices:
    """The choices of a captured training step on a device type.

    Raises
    ------
    InputError
        If the graph has no backward pass, or an op has no time on the device type.
    """
    if not any(op.phase == "backward" for op in graph.ops):
        raise InputError(f"graph {graph.name!r} has no backward pass; capture it with mode 'train'")
    time_s = {op.id: required_time_s(op, device_type) for op in graph.ops}
    inner: dict[str, dict[str, int]] = defaultdict(dict)
    crossing_bytes = 0
    for op in graph.ops:
        saved_bytes = _saved_bytes(graph, op)
        if not saved_bytes:
            continue
        if op.kind != "input" and _stays_inside(graph, op):
            inner[block_of(op)][op.id] = saved_bytes
        else:
            crossing_bytes += saved_bytes
    alternatives = {block: _alternatives(graph, time_s, saved) for block, saved in inner.items()}
    held = sum(op.weight_bytes + op.gradient_bytes + op.state_bytes for op in graph.ops)
    workspace = max(op.workspace_bytes for op in graph.ops)
    room = max((sum(saved.values()) for saved in inner.values()), default=0)
    return StepChoices(sum(time_s.values()), held + crossing_bytes + workspace + room, alternatives, room)


def block_of(op: Op) -> str:
    """The module that an op chooses with: the parent of the module that it comes from, or that one at top level."""
    path = op.module or ""
    return path.rpartition(".")[0] or path


def _saved_bytes(graph: OpGraph, op: Op) -> int:
    """Bytes of a forward op's outputs that the backward pass reads; parameters and buffers are held anyway."""
    if op.phase != "forward" or op.kind in ("parameter", "buffer"):
        return 0
    read = {edge.output: edge.bytes for edge in graph.edges_from[op.id] if graph.op(edge.target).phase == "backward"}
    return sum(read.values())


def _stays_inside(graph: OpGraph, op: Op) -> bool:
    readers = (graph.op(edge.target) for edge in graph.edges_from[op.id])
    return bool(op.module) and all(block_of(reader) == block_of(op) for reader in readers if reader.phase == "forward")


def _is_held(graph: OpGraph, op: Op) -> bool:
    """True if an op's result is there anyway: weights and inputs, and what is stored for other modules."""
    return op.kind in _GIVEN or (_saved_bytes(graph, op) > 0 and not _stays_inside(graph, op))


def _alternatives(graph: OpGraph, time_s: Mapping[str, float], saved: Mapping[str, int]) -> tuple[Alternative, ...]:
    block = block_of(graph.op(next(iter(saved))))
    again: set[str] = set()
    waiting = list(saved)
    while waiting:
        name = waiting.pop()
        if name not in again:
            again.add(name)
            sources = (graph.op(edge.source) for edge in graph.edges_into[name])
            waiting.extend(source.id for source in sources if block_of(source) == block and not _is_held(graph, source))
    return Alternative(STORE, 0.0, sum(saved.values())), Alternative(RECOMPUTE, sum(time_s[name] for name in again), 0)
