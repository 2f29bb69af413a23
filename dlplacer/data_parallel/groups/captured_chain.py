"""A captured step as a chain of layers whose parameters travel between data-parallel devices."""

from collections.abc import Mapping, Sequence

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.data_parallel.groups.layer_chain import LayerChain
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.costs.roofline_times import required_time_s

_NOT_COMPUTE = ("parameter", "buffer", "input", "gradient")


def chain_of(
    graph: OpGraph, device_type: str, line: AlphaBeta, direction: str, holders: Mapping[str, str] | None = None
) -> LayerChain:
    """Modules that own parameters, in the order of their first use in the forward pass.

    Forward: a module computes from the first op that reads one of its parameters until that of the next module; what
    runs before the first module counts to it. Backward: a module computes from when all gradients of the modules after
    it are there until its own are.

    Parameters
    ----------
    line
        Seconds of one exchange over its bytes.
    holders
        Parameter → the layer that it belongs to; None: the module that owns it.

    Raises
    ------
    InputError
        If no parameter is read, the graph lacks the direction's pass, or an op has no time on the device type.
    """
    layers = _layers(graph, holders)
    if not layers:
        raise InputError(f"graph {graph.name!r} has no parameters that its forward pass reads; capture a model")
    clock_s = serial_clock(graph, device_type, direction)
    if direction == "forward":
        starts_s = [clock_s[first][0] for first, _ in layers.values()]
        ends_s = [*starts_s[1:], max(end_s for _, end_s in clock_s.values())]
        compute_s = [max(0.0, end_s - start_s) for start_s, end_s in zip([0.0, *starts_s[1:]], ends_s, strict=True)]
    else:
        compute_s = _gradient_gaps(graph, clock_s, layers)
    sizes = [
        sum(op.weight_bytes if direction == "forward" else op.gradient_bytes for op in ops)
        for _, ops in layers.values()
    ]
    return LayerChain(
        line.latency_s, tuple(line.s_per_byte * size for size in sizes), tuple(compute_s), tuple(sizes), tuple(layers)
    )


def serial_order(graph: OpGraph) -> Sequence[str]:
    """Op ids as one device runs them: the file's order if it is one that can run, else a topological order."""
    if all(graph.index[edge.source] < graph.index[edge.target] for edge in graph.edges):
        return [op.id for op in graph.ops]
    return graph.topological_order


def _layers(graph: OpGraph, holders: Mapping[str, str] | None) -> dict[str, tuple[str, list[Op]]]:
    """Module path → (the first forward op that reads it, its parameters), in the order of those ops."""
    readers: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.kind == "parameter":
            for edge in graph.edges_from[op.id]:
                if graph.op(edge.target).phase == "forward":
                    readers.setdefault(edge.target, []).append(op)
    layers: dict[str, tuple[str, list[Op]]] = {}
    known: set[str] = set()
    for name in serial_order(graph):
        for parameter in readers.get(name, ()):
            if parameter.id not in known:
                known.add(parameter.id)
                owner = parameter.module or parameter.id
                layer = owner if holders is None else holders.get(parameter.id, owner)
                layers.setdefault(layer, (name, []))[1].append(parameter)
    return layers


def serial_clock(graph: OpGraph, device_type: str, direction: str) -> dict[str, tuple[float, float]]:
    """Op id → start and end of the pass's ops, one after another."""
    times: dict[str, tuple[float, float]] = {}
    now_s = 0.0
    for name in serial_order(graph):
        op = graph.op(name)
        if op.phase == direction and op.kind not in _NOT_COMPUTE:
            time_s = required_time_s(op, device_type)
            times[name] = (now_s, now_s + time_s)
            now_s += time_s
    if not times:
        raise InputError(f"graph {graph.name!r} has no {direction} ops; capture it with mode 'train'")
    return times


def _gradient_gaps(
    graph: OpGraph, clock_s: dict[str, tuple[float, float]], layers: dict[str, tuple[str, list[Op]]]
) -> list[float]:
    """Seconds of backward between a module's last gradient and those of the modules behind it."""
    finished_s = gradient_times(graph, clock_s)
    ready_s = [
        max((finished_s.get(parameter.id, 0.0) for parameter in parameters), default=0.0)
        for _, parameters in layers.values()
    ]
    gaps, behind_s = [], 0.0
    # Gradients may be ready out of order; a chain knows no overtaking, and such a module takes no time of its own.
    for own_s in reversed(ready_s):
        gaps.append(max(0.0, own_s - behind_s))
        behind_s = max(behind_s, own_s)
    return gaps[::-1]


def gradient_times(graph: OpGraph, clock_s: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Parameter → when its gradient is finished, by the clock of the backward pass; none for one without a gradient."""
    parameters = {op.colocate: op.id for op in graph.ops if op.kind == "parameter"}
    found = {}
    for op in graph.ops:
        if op.kind == "gradient" and op.colocate in parameters:
            ends_s = (clock_s[edge.source][1] for edge in graph.edges_into[op.id] if edge.source in clock_s)
            found[parameters[op.colocate]] = max(ends_s, default=0.0)
    return found
