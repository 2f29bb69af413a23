"""A captured step as a chain of layers whose parameters data-parallel devices exchange."""

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
"""Op id → start and end in seconds."""


@dataclass(frozen=True)
class ParameterUses:
    """The modules that use the parameters of a step, and the order in which their gradients are finished.

    A tied parameter counts once, under the first of its names.

    Attributes
    ----------
    gradient_order
        The parameters in the order in which the autograd engine finishes their gradients.
    unused
        Parameters that require a gradient but get none.
    holders
        Parameter → path of the innermost module that uses it within a single call ("" for the whole module). Sharded
        parameters can be gathered before that call and freed after it. A parameter that is used outside the module, for
        example by a loss, is missing.
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
    """The chain of modules that own parameters, in the order of their first use in the forward pass.

    Forward: see `unit_chain`. Backward: a module computes from the time when all gradients of later modules are
    finished until its own gradients are finished.

    Parameters
    ----------
    line
        Cost of one exchange, linear in its bytes.
    """
    layers = _owners(graph)
    if not layers:
        raise InputError(f"graph {graph.name!r} has no parameters that its forward pass reads; capture a model")
    if direction == "forward":
        return _forward_chain(graph, device_type, line, layers)
    finished_s = gradient_times(graph, serial_clock(graph, device_type, direction))
    gaps_s, behind_s = [], 0.0
    # Gradients may be ready out of order; a chain cannot express this, so such a module gets a time of 0.
    for names in reversed(layers.values()):
        own_s = max(finished_s.get(name, 0.0) for name in names)
        gaps_s.append(max(0.0, own_s - behind_s))
        behind_s = max(behind_s, own_s)
    sizes = tuple(sum(graph.op(name).gradient_bytes for name in names) for names in layers.values())
    transfers_s = tuple(line.s_per_byte * size for size in sizes)
    return LayerChain(line.latency_s, transfers_s, tuple(reversed(gaps_s)), sizes, tuple(layers))


def unit_chain(graph: OpGraph, device_type: str, uses: ParameterUses, line: AlphaBeta, direction: str) -> LayerChain:
    """The chain of modules that hold parameters, in the order of their calls.

    A module computes from its first use of a parameter to the next module's first use; ops before the first module are
    part of it. The backward pass visits the modules in reverse, with times in proportion to the forward pass.
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
    # A module is called before the modules inside it, even if it computes after them.
    for number in reversed(range(len(starts_s) - 1)):
        starts_s[number] = min(starts_s[number], starts_s[number + 1])
    sizes = tuple(sum(graph.op(name).weight_bytes for name in names) for names in known.values())
    # FSDP2 gathers only one dtype per message.
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
    """Op ids in the order of one device: the file's order if it is feasible, else a topological order."""
    if all(graph.index[edge.source] < graph.index[edge.target] for edge in graph.edges):
        return [op.id for op in graph.ops]
    return graph.topological_order


def serial_clock(graph: OpGraph, device_type: str, direction: str) -> Clock:
    """The start and end in seconds of each op of a pass, with all ops in series."""
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
    """Parameter → seconds at which the backward pass finishes its gradient; absent without a gradient."""
    parameters = {op.colocate: op.id for op in graph.ops if op.kind == "parameter"}
    found = {}
    for op in graph.ops:
        if op.kind == "gradient" and op.colocate in parameters:
            ends_s = (clock_s[edge.source][1] for edge in graph.edges_into[op.id] if edge.source in clock_s)
            found[parameters[op.colocate]] = max(ends_s, default=0.0)
    return found


def gradients_of(graph: OpGraph, uses: ParameterUses, clock_s: Clock) -> tuple[Gradient, ...]:
    """The gradients of a step in the order in which they become ready for DDP; unused parameters come last."""
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
