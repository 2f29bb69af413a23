"""A captured step as a chain of layers whose parameters travel between data-parallel devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.data_parallel.groups.ddp_buckets import Gradient
from dlplacer.data_parallel.groups.layer_chain import LayerChain
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.machines.costs.roofline_times import required_time_s

_NOT_COMPUTE = ("parameter", "buffer", "input", "gradient")
Clock = Mapping[str, tuple[float, float]]
"""Op id → start and end."""


@dataclass(frozen=True)
class ParameterUses:
    """The modules that use the parameters of a step, and the order in which backward finishes their gradients.

    A tied parameter counts once, under the first of its names.

    Attributes
    ----------
    gradient_order
        The parameters in the order in which the autograd engine finishes their gradients.
    unused
        Parameters that require a gradient and get none.
    holders
        Parameter → path of the innermost module that uses it within a single call ("" for the whole module). Sharded
        parameters can be gathered before that call and freed after it. A parameter that is used outside the module, as
        by a loss, has none.
    calls
        Paths of the holders in the order in which they are called.
    """

    gradient_order: tuple[str, ...]
    unused: tuple[str, ...]
    holders: Mapping[str, str]
    calls: tuple[str, ...]

    @property
    def held(self) -> dict[str, list[str]]:
        """Holder → its parameters, in the order of the calls."""
        found: dict[str, list[str]] = {path: [] for path in self.calls}
        for name, path in self.holders.items():
            found.setdefault(path, []).append(name)
        return found


def chain_of(graph: OpGraph, device_type: str, line: AlphaBeta, direction: str) -> LayerChain:
    """Modules that own parameters, in the order of their first use in the forward pass.

    Forward: as in `unit_chain`. Backward: a module computes from when all gradients of the modules after it are there
    until its own are.

    Parameters
    ----------
    line
        Seconds of one exchange over its bytes.
    """
    layers = _owners(graph)
    if not layers:
        raise InputError(f"graph {graph.name!r} has no parameters that its forward pass reads; capture a model")
    if direction == "forward":
        return _forward_chain(graph, device_type, line, layers)
    finished_s = gradient_times(graph, serial_clock(graph, device_type, direction))
    gaps_s, behind_s = [], 0.0
    # Gradients may be ready out of order; a chain knows no overtaking, and such a module takes no time of its own.
    for names in reversed(layers.values()):
        own_s = max(finished_s.get(name, 0.0) for name in names)
        gaps_s.append(max(0.0, own_s - behind_s))
        behind_s = max(behind_s, own_s)
    sizes = tuple(sum(graph.op(name).gradient_bytes for name in names) for names in layers.values())
    transfers_s = tuple(line.s_per_byte * size for size in sizes)
    return LayerChain(line.latency_s, transfers_s, tuple(reversed(gaps_s)), sizes, tuple(layers))


def unit_chain(graph: OpGraph, device_type: str, uses: ParameterUses, line: AlphaBeta, direction: str) -> LayerChain:
    """Modules that hold parameters, in the order of their calls.

    A module computes from its first use of a parameter to that of the next one; what runs before the first module
    counts to it. Backward passes over the modules in reverse, each in its share of the time.
    """
    chain = _forward_chain(graph, device_type, line, uses.held)
    if direction == "forward":
        return chain
    backward_s = max(end_s for _, end_s in serial_clock(graph, device_type, "backward").values())
    scale = backward_s / sum(chain.compute_s) if any(chain.compute_s) else 0.0
    return replace(chain, compute_s=tuple(scale * time_s for time_s in chain.compute_s))


def _forward_chain(
    graph: OpGraph, device_type: str, line: AlphaBeta, layers: Mapping[str, Sequence[str]]
) -> LayerChain:
    clock_s = serial_clock(graph, device_type, "forward")
    end_s = max(end for _, end in clock_s.values())
    known = {layer: [name for name in names if name in graph.index] for layer, names in layers.items()}
    starts_s = []
    for names in known.values():
        reads = (edge.target for name in names for edge in graph.edges_from[name])
        starts_s.append(min((clock_s[op][0] for op in reads if op in clock_s), default=end_s))
    # A module is called before those inside it, whatever it computes after them.
    for number in reversed(range(len(starts_s) - 1)):
        starts_s[number] = min(starts_s[number], starts_s[number + 1])
    sizes = tuple(sum(graph.op(name).weight_bytes for name in names) for names in known.values())
    # FSDP2 gathers one dtype in a message.
    dtypes = tuple("/".join(sorted({graph.op(name).outputs[0].dtype for name in names})) for names in known.values())
    return LayerChain(
        line.latency_s,
        tuple(line.s_per_byte * size for size in sizes),
        tuple(after - before for before, after in pairwise((0.0, *starts_s[1:], end_s))),
        sizes,
        tuple(known),
        dtypes,
    )


def _owners(graph: OpGraph) -> dict[str, list[str]]:
    """Module path → its parameters, in the order of the first forward ops that read them."""
    readers: dict[str, list[str]] = {}
    for op in graph.ops:
        if op.kind == "parameter":
            for edge in graph.edges_from[op.id]:
                if graph.op(edge.target).phase == "forward":
                    readers.setdefault(edge.target, []).append(op.id)
    read = dict.fromkeys(parameter for name in serial_order(graph) for parameter in readers.get(name, ()))
    layers: dict[str, list[str]] = {}
    for parameter in read:
        layers.setdefault(graph.op(parameter).module or parameter, []).append(parameter)
    return layers


def serial_order(graph: OpGraph) -> Sequence[str]:
    """Op ids as one device runs them: the file's order if it is one that can run, else a topological order."""
    if all(graph.index[edge.source] < graph.index[edge.target] for edge in graph.edges):
        return [op.id for op in graph.ops]
    return graph.topological_order


def serial_clock(graph: OpGraph, device_type: str, direction: str) -> Clock:
    """The start and end of each of the pass's ops, one after another."""
    times: dict[str, tuple[float, float]] = {}
    now_s = 0.0
    for name in serial_order(graph):
        op = graph.op(name)
        if op.phase == direction and op.kind not in _NOT_COMPUTE:
            times[name] = now_s, now_s + required_time_s(op, device_type)
            now_s = times[name][1]
    if not times:
        raise InputError(f"graph {graph.name!r} has no {direction} ops; capture it with mode 'train'")
    return times


def gradient_times(graph: OpGraph, clock_s: Clock) -> dict[str, float]:
    """Parameter → when its gradient is finished, by the clock of the backward pass; none for one without a gradient."""
    parameters = {op.colocate: op.id for op in graph.ops if op.kind == "parameter"}
    found = {}
    for op in graph.ops:
        if op.kind == "gradient" and op.colocate in parameters:
            ends_s = (clock_s[edge.source][1] for edge in graph.edges_into[op.id] if edge.source in clock_s)
            found[parameters[op.colocate]] = max(ends_s, default=0.0)
    return found


def gradients_of(graph: OpGraph, uses: ParameterUses, clock_s: Clock) -> tuple[Gradient, ...]:
    """The gradients of a step in the order in which DDP finds them ready; those of unused parameters come last."""
    finished_s = gradient_times(graph, clock_s)
    end_s = max(end for _, end in clock_s.values())
    found = []
    for name in (*uses.gradient_order, *uses.unused):
        if name not in graph.index:
            raise InputError(
                f"graph {graph.name!r} has no parameter {name!r}, which the job trains; give the graph of this job"
            )
        op = graph.op(name)
        found.append(Gradient(name, op.weight_bytes, op.outputs[0].dtype, finished_s.get(name, end_s)))
    return tuple(found)
