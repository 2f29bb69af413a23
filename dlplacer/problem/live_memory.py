"""Memory over time: the live bytes of every device under ``memory: live``."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from dlplacer.core.plan import DeviceMemory, ScheduledOp, Transfer, tolerance_s
from dlplacer.problem.problem import Problem


def peaks(
    problem: Problem,
    device: Sequence[int],
    start: Sequence[float],
    end: Sequence[float],
    transfers: Sequence[Transfer] = (),
    slack: float = 0,
) -> list[int]:
    """[device] → the most bytes that are live there at any time.

    Weights, gradients and state stay for the whole step. An output lives from its op's start to the end of its last
    local reader or outgoing transfer. A copy lives from the start of its arrival to the end of its last reader on the
    device; on a relay, to the end of the next route segment. Workspace lives while its op runs. Times are ticks or
    seconds. Tensors whose lives overlap by at most `slack` are not counted together.
    """
    change: list[dict[float, int]] = [defaultdict(int) for _ in range(problem.device_count)]
    for here, begin, until, size in _lives(problem, device, start, end, transfers):
        if size and until > begin:
            change[here][begin] += size
            change[here][until - min(slack, (until - begin) / 2) if slack else until] -= size
    top = [0] * problem.device_count
    for op, here in enumerate(device[: problem.op_count]):
        top[here] += problem.resident_bytes[op]
    for here, changes in enumerate(change):
        level = top[here]
        for moment in sorted(changes):
            level += changes[moment]
            top[here] = max(top[here], level)
    return top


def _lives(
    problem: Problem,
    device: Sequence[int],
    start: Sequence[float],
    end: Sequence[float],
    transfers: Sequence[Transfer],
) -> Iterator[tuple[int, float, float, int]]:
    """(device, begin, end, bytes) of each temporary tensor and workspace."""
    graph, position = problem.graph, problem.topology.device_index
    used_until: dict[tuple[int, int], float] = {}
    output_of: dict[str, int] = {}
    readers: dict[str, list[int]] = defaultdict(list)
    for edge, arc in zip(graph.edges, problem.arcs, strict=True):
        output_of[edge.tensor] = edge.output
        readers[edge.tensor].append(arc.target)
        if device[arc.source] == device[arc.target]:
            key = arc.source, edge.output
            used_until[key] = max(used_until.get(key, 0), end[arc.target])
    for one in transfers:
        key = graph.index[one.source], output_of[one.tensor]
        used_until[key] = max(used_until.get(key, 0), one.segments[0].end_s)
        for part, onward in pairwise(one.segments):
            yield position[part.route[-1][1]], part.start_s, onward.end_s, one.bytes
        last = one.segments[-1]
        here = position[last.route[-1][1]]
        yield here, last.start_s, max(end[op] for op in readers[one.tensor] if device[op] == here), one.bytes
    for op in range(problem.op_count):
        yield device[op], start[op], end[op], problem.workspace_bytes[op]
        for tensor in graph.output_parts.get(graph.ops[op].id, ()):
            until = max((used_until.get((op, output), 0) for output in tensor.outputs), default=0)
            yield device[op], start[op], max(end[op], until), tensor.bytes


def may_bind(problem: Problem) -> bool:
    """True if ``memory: live`` applies and some placement may exceed a device's memory."""
    most = sum(op.footprint_bytes for op in problem.graph.ops) + 2 * sum(edge.bytes for edge in problem.graph.edges)
    return problem.options.memory == "live" and any(
        capacity is not None and capacity < most for capacity in problem.capacity_bytes
    )


def input_bytes(problem: Problem, op: int) -> dict[int, tuple[int, int]]:
    """Producer of an op's inputs → (bytes of the outputs that the op reads, bytes of their copies if they are sent)."""
    sent: dict[int, dict[str, int]] = {}
    read: dict[int, set[int]] = {}
    for edge in problem.graph.edges_into[problem.graph.ops[op].id]:
        source = problem.graph.index[edge.source]
        sent.setdefault(source, {})[edge.tensor] = edge.bytes
        read.setdefault(source, set()).add(edge.output)
    found = {}
    for source, tensors in sent.items():
        parts = problem.graph.output_parts.get(problem.graph.ops[source].id, ())
        here = sum(part.bytes for part in parts if part.outputs & read[source])
        found[source] = here, sum(tensors.values())
    return found


def memory_use(problem: Problem, ops: Sequence[ScheduledOp], transfers: Sequence[Transfer]) -> dict[str, DeviceMemory]:
    """Device → its capacity, and the peak bytes of a plan's ops and transfers there, by the problem's memory rule."""
    position = problem.topology.device_index
    device, start_s, end_s = [0] * problem.op_count, [0.0] * problem.op_count, [0.0] * problem.op_count
    for entry in ops:
        op = problem.graph.index[entry.op]
        device[op], start_s[op], end_s[op] = position[entry.device], entry.start_s, entry.end_s
    if problem.options.memory == "sum":
        used = [0] * problem.device_count
        for op, here in enumerate(device):
            used[here] += problem.footprint_bytes[op]
    else:
        slack_s = tolerance_s(problem.topology, ops, transfers)
        used = peaks(problem, device, start_s, end_s, transfers, slack_s)
    return {
        entry.id: DeviceMemory(entry.memory_bytes, used[number])
        for number, entry in enumerate(problem.topology.devices)
    }
