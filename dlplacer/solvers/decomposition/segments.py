"""Cut ops: where a graph falls into segments that run one after another."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from dlplacer.problem.route_table import Traffic, TransferRequest
from dlplacer.solvers.bounds import lower_bounds
from dlplacer.solvers.instance.instance import Arcs, Delay, Instance
from dlplacer.solvers.instance.time_limit import now

_LARGEST_SERIES, _LARGEST_REFINED = 120, 60
"""Ops up to which segments are joined into a series, and up to which parts of a larger segment are kept: CP-SAT proves
62 ops in seconds, and its disjunctive loses its precedence literals above 60 intervals per device."""


@dataclass(frozen=True)
class GraphSegment:
    """The ops from a cut op to the next, in topological order; the first segment `begins` without a cut op.

    Its instance has these ops alone, without memory, the last one in no time: its makespan is the time from the start
    of the first cut op to the start of the last.
    """

    ops: tuple[int, ...]
    instance: Instance
    begins: bool


@dataclass(frozen=True)
class Series:
    """Segments, by their numbers, whose placements are coupled by colocation, to be solved together.

    In its instance they run one after another: its makespan is the sum of theirs.
    """

    segments: tuple[int, ...]
    instance: Instance


def find_segments(instance: Instance, last: int, seconds: float = 1.0) -> list[GraphSegment]:
    """The segments of the ops that lead to `last`, sources of zero time left out.

    A cut op is before or after every other one of these ops. So all that lead to it end before it starts, and all that
    follow start after it ends: segments run one after another, and the start of `last` is no earlier than the sum of
    their makespans. (What leads into a segment from farther back, or from sources, is left out, which lengthens
    nothing; and so is what only the barrier waits for, which would be beside every cut op before it.)

    What is left out may be any op: a segment too large to be solved falls apart without those of its ops that have the
    most slack, such as what the forward pass prepares for the backward pass alone. The time is for the bounds that tell
    the slack.
    """
    # On Inception's training graph this leaves 65 segments, else 34.
    instance = _without_leaves(instance)
    ops = reached(instance.predecessors, instance.order[::-1], last, instance.sources)[::-1]
    return list(_fallen_apart(instance, ops, _LARGEST_SERIES, now() + seconds))


def _fallen_apart(
    instance: Instance, ops: Sequence[int], largest: int, stop_at: float, begins: bool = True
) -> Iterator[GraphSegment]:
    """The segments of some ops in topological order, all of which lead to the last; refined above the largest size."""
    for before, cut in pairwise([-1, *_comparable(instance, ops)]):
        chosen = ops[max(before, 0) : cut + 1]
        if len(chosen) > 1:
            segment = GraphSegment(tuple(chosen), relaxed(instance, chosen, -1), begins and before < 0)
            yield from _refined(instance, segment, stop_at) if len(chosen) > largest else (segment,)


def _refined(instance: Instance, segment: GraphSegment, stop_at: float) -> Iterator[GraphSegment]:
    """The segments into which a large one falls without the ops of most slack; itself if it does not.

    Heads know more than paths: an op that waits for one of two tensors, whatever their devices, may have less slack
    than both producers. Ops then on no path any more are left out too, as the rows of a segment count on its inputs.
    """
    if now() > stop_at:
        yield segment
        return
    part, ends = segment.instance, {segment.ops[0], segment.ops[-1]}
    bounds = lower_bounds(part, stop_at - now())
    length = [h + ticks + t for h, ticks, t in zip(bounds.head, part.shortest, bounds.tail, strict=True)]
    slack = {op: max(length) - through for op, through in zip(segment.ops, length, strict=True)}
    allowed = max(slack.values()) // 2
    while allowed:
        kept = [op for op in segment.ops if slack[op] <= allowed or op in ends]
        kept = _on_paths(instance, kept, segment.begins)
        if len(_comparable(instance, kept)) > (1 if segment.begins else 2):
            yield from _fallen_apart(instance, kept, _LARGEST_REFINED, stop_at, segment.begins)
            return
        allowed //= 2
    yield segment


def _on_paths(instance: Instance, ops: Sequence[int], begins: bool) -> list[int]:
    """The given ops, in topological order, that are on a path among them from the first, or from any, to the last."""
    reached, leading = set(ops if begins else ops[:1]), set(ops[-1:])
    for op in ops:
        if not reached.isdisjoint(source for source, _ in instance.predecessors[op]):
            reached.add(op)
    for op in reversed(ops):
        if not leading.isdisjoint(target for target, _ in instance.successors[op]):
            leading.add(op)
    return [op for op in ops if op in reached and op in leading]


def couple(instance: Instance, segments: Sequence[GraphSegment]) -> list[Series]:
    """The segments in series: together where a colocation group runs inside both, or where their cut ops pair up.

    Any grouping gives a valid bound. This one keeps what a forward segment and its backward share, but joins no series
    that would be too large to solve.
    """
    users: dict[object, list[int]] = {}
    for number, segment in enumerate(segments):
        inner = segment.ops[:-1] if segment.begins else segment.ops[1:-1]
        keys: set[object] = {instance.block[op] for op in inner if len(instance.members[instance.block[op]]) > 1}
        ends = frozenset((instance.block[segment.ops[0]], instance.block[segment.ops[-1]]))
        if all(len(instance.members[block]) > 1 for block in ends):
            keys.add(ends)
        for key in keys:
            users.setdefault(key, []).append(number)
    series = {number: [number] for number in range(len(segments))}
    # Pairs first: a group that runs through many segments would use up the allowed size before them.
    for numbers in sorted(users.values(), key=len):
        joined = sorted({other for number in numbers for other in series[number]})
        if sum(len(segments[number].ops) for number in joined) <= _LARGEST_SERIES:
            series.update(dict.fromkeys(joined, joined))
    distinct = {tuple(numbers): None for numbers in series.values()}
    return [
        Series(numbers, _in_series(instance, [segments[number] for number in numbers])) for numbers in sorted(distinct)
    ]


def with_traffic(instance: Instance, segments: Sequence[GraphSegment], several: Sequence[Series]) -> list[Series]:
    """Series with what is sent inside their segments.

    What is sent between ops of one segment is sent between the starts of its cut ops, so the makespans of all series
    still add up to a bound: other traffic on the links is left out, which lengthens nothing.
    """
    if instance.traffic is None:
        return list(several)
    sent: dict[int, list[TransferRequest]] = {}
    for request in instance.traffic.requests:
        sent.setdefault(request.source, []).append(request)
    found = []
    for series in several:
        requests, offset = list[TransferRequest](), 0
        for ops in (segments[number].ops for number in series.segments):
            position = {op: place for place, op in enumerate(ops, offset)}
            for request in (request for op in ops[:-1] for request in sent.get(op, ())):
                source = position[request.source]
                readers = tuple(position[reader] for reader in request.readers if position.get(reader, -1) > source)
                if readers:
                    requests.append(TransferRequest("", source, request.size, readers, readers))
            offset += len(ops)
        traffic = Traffic(instance.traffic.routes, tuple(requests))
        found.append(replace(series, instance=replace(series.instance, traffic=traffic)))
    return found


def reached(arcs: Arcs, order: Sequence[int], op: int, barred: Container[int] = ()) -> list[int]:
    """An op and all others to which arcs lead from it, in an order of all that these arcs obey."""
    found = {op}
    for source in order:
        if source in found:
            found.update(end for end, _ in arcs[source] if end not in barred)
    return [other for other in order if other in found]


def _comparable(instance: Instance, ops: Sequence[int]) -> list[int]:
    """Positions of the ops that are before or after every other one, in time linear in the arcs.

    Proof: let ops be numbered in topological order. If every op before number v has an arc to one of at most v, then
    following such arcs from any of them ends at v, so all of them lead to v; and where one has none, it does not lead
    to v, as arcs only go up. The same holds backwards for the ops after v.
    """
    number, count = {op: position for position, op in enumerate(ops)}, len(ops)
    first_after = (min((number.get(end, count) for end, _ in instance.successors[op]), default=count) for op in ops)
    last_before = [max((number.get(end, -1) for end, _ in instance.predecessors[op]), default=-1) for op in ops]
    farthest = [-1, *accumulate(first_after, max)]
    nearest = [*accumulate(reversed(last_before), min)][::-1] + [count]
    return [position for position in range(count) if farthest[position] <= position <= nearest[position + 1]]


def _without_leaves(instance: Instance) -> Instance:
    """The instance in which the barrier does not wait for what nothing else reads, unless that is all."""
    barrier = instance.barrier
    if barrier is None:
        return instance
    arcs = instance.predecessors[barrier]
    read = tuple(arc for arc in arcs if len(instance.successors[arc[0]]) > 1)
    kept = {op for op, _ in read or arcs}
    successors = [
        tuple(arc for arc in row if arc[0] != barrier or op in kept) for op, row in enumerate(instance.successors)
    ]
    predecessors = [*instance.predecessors]
    predecessors[barrier] = read or arcs
    return replace(instance, successors=tuple(successors), predecessors=tuple(predecessors))


def relaxed(instance: Instance, ops: Sequence[int], instant: int) -> Instance:
    """The instance of some ops without memory rules, the one at position `instant` in no time."""
    part, count = instance.restricted(ops), instance.device_count
    duration = list(part.duration)
    duration[instant] = (0,) * count
    footprint, capacity = (0,) * len(part.members), (None,) * count
    return replace(part, duration=tuple(duration), footprint=footprint, capacity=capacity)


def _in_series(instance: Instance, segments: Sequence[GraphSegment]) -> Instance:
    """Segments joined by arcs without delay from the last op of each to the first of the next."""
    if len(segments) == 1:
        return segments[0].instance
    nothing: Delay = ((0,) * instance.device_count,) * instance.device_count
    predecessors: list[tuple[tuple[int, Delay], ...]] = []
    for segment in segments:
        offset = len(predecessors)
        joint = ((offset - 1, nothing),) if offset else ()
        rows = [tuple((op + offset, delay) for op, delay in row) for row in segment.instance.predecessors]
        predecessors += [rows[0] + joint, *rows[1:]]
    successors: list[list[tuple[int, Delay]]] = [[] for _ in predecessors]
    for op, row in enumerate(predecessors):
        for source, delay in row:
            successors[source].append((op, delay))
    blocks = [instance.block[op] for segment in segments for op in segment.ops]
    number = {block: count for count, block in enumerate(dict.fromkeys(blocks))}
    members: list[list[int]] = [[] for _ in number]
    for op, block in enumerate(blocks):
        members[number[block]].append(op)
    return replace(
        segments[0].instance,
        duration=tuple(row for segment in segments for row in segment.instance.duration),
        allowed=tuple(devices for segment in segments for devices in segment.instance.allowed),
        successors=tuple(map(tuple, successors)),
        predecessors=tuple(predecessors),
        order=tuple(range(len(blocks))),
        block=tuple(number[block] for block in blocks),
        members=tuple(map(tuple, members)),
        footprint=(0,) * len(number),
        sources=frozenset(),
        sinks=frozenset(),
    )
