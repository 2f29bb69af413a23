"""Cut ops, which divide a graph into sections that run one after another."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from dlplacer.problem.route_table import Traffic, TransferRequest
from dlplacer.solvers.bounds import lower_bounds
from dlplacer.solvers.instance.instance import Arcs, Delay, Instance
from dlplacer.solvers.instance.time_limit import now

_LARGEST_SERIES, _LARGEST_REFINED = 120, 60
"""Most ops of a section or joined series, and of a section that refinement finds: CP-SAT proves about 60 ops in
seconds, and above 60 intervals per device its disjunctive loses its precedence literals."""


@dataclass(frozen=True)
class GraphSection:
    """The ops from a cut op to the next, in topological order; the first section `begins` without a cut op.

    In its instance memory is unlimited and the last op takes no time, so the makespan is the time until that op starts.
    """

    ops: tuple[int, ...]
    instance: Instance
    begins: bool


@dataclass(frozen=True)
class Series:
    """The numbers of sections that colocation couples, and an instance in which these sections run in sequence."""

    sections: tuple[int, ...]
    instance: Instance


def find_sections(instance: Instance, last: int, seconds: float = 1.0) -> list[GraphSection]:
    """The sections of the ops that lead to `last`, without zero-time sources.

    A cut op precedes or follows every other one of these ops. All its predecessors end before it starts, and all its
    successors start after it ends. So sections run one after another, and `last` starts no earlier than the sum of the
    makespans. Arcs into a section from farther back or from sources are omitted, which lengthens nothing. Ops that only
    the barrier waits for are omitted too, because they are unordered with every cut op before the barrier.

    Omitting an op never raises a bound. So a section too large to solve is divided without its ops of most slack, such
    as forward ops that only the backward pass reads. `seconds` limits the time for the bounds that measure slack.
    """
    instance = _without_leaves(instance)
    ops = reached(instance.predecessors, instance.order[::-1], last, instance.sources)[::-1]
    return list(_fallen_apart(instance, ops, _LARGEST_SERIES, now() + seconds))


def _fallen_apart(
    instance: Instance, ops: Sequence[int], largest: int, stop_at: float, begins: bool = True
) -> Iterator[GraphSection]:
    """The sections of `ops` (in topological order, all leading to the last); those above `largest` ops are refined."""
    for before, cut in pairwise([-1, *_comparable(instance, ops)]):
        chosen = ops[max(before, 0) : cut + 1]
        if len(chosen) > 1:
            section = GraphSection(tuple(chosen), relaxed(instance, chosen, -1), begins and before < 0)
            yield from _refined(instance, section, stop_at) if len(chosen) > largest else (section,)


def _refined(instance: Instance, section: GraphSection, stop_at: float) -> Iterator[GraphSection]:
    """The sections of a large section without its ops of most slack; the section itself if no cut ops result.

    Heads are stronger than paths: an op that waits for one of two tensors, whatever the devices, may have less slack
    than both producers. Ops that are left on no path are dropped, because the rows of a section rely on all inputs.
    """
    if now() > stop_at:
        yield section
        return
    part, ends = section.instance, {section.ops[0], section.ops[-1]}
    bounds = lower_bounds(part, stop_at - now())
    length = [h + ticks + t for h, ticks, t in zip(bounds.head, part.shortest, bounds.tail, strict=True)]
    slack = {op: max(length) - through for op, through in zip(section.ops, length, strict=True)}
    allowed = max(slack.values()) // 2
    while allowed:
        kept = [op for op in section.ops if slack[op] <= allowed or op in ends]
        kept = _on_paths(instance, kept, section.begins)
        if len(_comparable(instance, kept)) > (1 if section.begins else 2):
            yield from _fallen_apart(instance, kept, _LARGEST_REFINED, stop_at, section.begins)
            return
        allowed //= 2
    yield section


def _on_paths(instance: Instance, ops: Sequence[int], begins: bool) -> list[int]:
    """The members of `ops` on a path from the first op (any op if `begins`) to the last, in topological order."""
    reached, leading = set(ops if begins else ops[:1]), set(ops[-1:])
    for op in ops:
        if not reached.isdisjoint(source for source, _ in instance.predecessors[op]):
            reached.add(op)
    for op in reversed(ops):
        if not leading.isdisjoint(target for target, _ in instance.successors[op]):
            leading.add(op)
    return [op for op in ops if op in reached and op in leading]


def couple(instance: Instance, sections: Sequence[GraphSection]) -> list[Series]:
    """Series of sections that share a colocation group, up to a size; the bound is valid for any series."""
    users: dict[object, list[int]] = {}
    for number, section in enumerate(sections):
        inner = section.ops[:-1] if section.begins else section.ops[1:-1]
        keys: set[object] = {instance.block[op] for op in inner if len(instance.members[instance.block[op]]) > 1}
        ends = frozenset((instance.block[section.ops[0]], instance.block[section.ops[-1]]))
        if all(len(instance.members[block]) > 1 for block in ends):
            keys.add(ends)
        for key in keys:
            users.setdefault(key, []).append(number)
    series = {number: [number] for number in range(len(sections))}
    # Pairs first: a group in many sections would use up the allowed size.
    for numbers in sorted(users.values(), key=len):
        joined = sorted({other for number in numbers for other in series[number]})
        if sum(len(sections[number].ops) for number in joined) <= _LARGEST_SERIES:
            series.update(dict.fromkeys(joined, joined))
    distinct = {tuple(numbers): None for numbers in series.values()}
    return [
        Series(numbers, _in_series(instance, [sections[number] for number in numbers])) for numbers in sorted(distinct)
    ]


def with_traffic(instance: Instance, sections: Sequence[GraphSection], several: Sequence[Series]) -> list[Series]:
    """Series with the transfers inside their sections.

    Transfers between ops of one section run between the starts of its cut ops, so the makespans of all series still add
    up to a bound. Other traffic is omitted, which lengthens nothing.
    """
    if instance.traffic is None:
        return list(several)
    sent: dict[int, list[TransferRequest]] = {}
    for request in instance.traffic.requests:
        sent.setdefault(request.source, []).append(request)
    found = []
    for series in several:
        requests, offset = list[TransferRequest](), 0
        for ops in (sections[number].ops for number in series.sections):
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
    """An op and all ops that arcs reach from it, except `barred` ones, in `order`, a topological order of the arcs."""
    found = {op}
    for source in order:
        if source in found:
            found.update(end for end, _ in arcs[source] if end not in barred)
    return [other for other in order if other in found]


def _comparable(instance: Instance, ops: Sequence[int]) -> list[int]:
    """Positions of the ops that are before or after every other op, found in time linear in the arcs.

    Proof: number the ops in topological order. If every op before number v has an arc to an op of number at most v,
    then following such arcs from any of them ends at v, so all lead to v. If an op has no such arc, it does not lead to
    v, because arcs only go up. The same holds backwards for the ops after v.
    """
    number, count = {op: position for position, op in enumerate(ops)}, len(ops)
    first_after = (min((number.get(end, count) for end, _ in instance.successors[op]), default=count) for op in ops)
    last_before = [max((number.get(end, -1) for end, _ in instance.predecessors[op]), default=-1) for op in ops]
    farthest = [-1, *accumulate(first_after, max)]
    nearest = [*accumulate(reversed(last_before), min)][::-1] + [count]
    return [position for position in range(count) if farthest[position] <= position <= nearest[position + 1]]


def _without_leaves(instance: Instance) -> Instance:
    """The instance with a barrier that does not wait for ops without other readers, unless it waits for no others."""
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
    """The instance of some ops, with unlimited memory; the op at position `instant` takes no time."""
    part, count = instance.restricted(ops), instance.device_count
    duration = list(part.duration)
    duration[instant] = (0,) * count
    footprint, capacity = (0,) * len(part.members), (None,) * count
    return replace(part, duration=tuple(duration), footprint=footprint, capacity=capacity)


def _in_series(instance: Instance, sections: Sequence[GraphSection]) -> Instance:
    """The instance of sections joined by zero-delay arcs from the last op of a section to the first of the next."""
    if len(sections) == 1:
        return sections[0].instance
    nothing: Delay = ((0,) * instance.device_count,) * instance.device_count
    predecessors: list[tuple[tuple[int, Delay], ...]] = []
    for section in sections:
        offset = len(predecessors)
        joint = ((offset - 1, nothing),) if offset else ()
        rows = [tuple((op + offset, delay) for op, delay in row) for row in section.instance.predecessors]
        predecessors += [rows[0] + joint, *rows[1:]]
    successors: list[list[tuple[int, Delay]]] = [[] for _ in predecessors]
    for op, row in enumerate(predecessors):
        for source, delay in row:
            successors[source].append((op, delay))
    blocks = [instance.block[op] for section in sections for op in section.ops]
    number = {block: count for count, block in enumerate(dict.fromkeys(blocks))}
    members: list[list[int]] = [[] for _ in number]
    for op, block in enumerate(blocks):
        members[number[block]].append(op)
    return replace(
        sections[0].instance,
        duration=tuple(row for section in sections for row in section.instance.duration),
        allowed=tuple(devices for section in sections for devices in section.instance.allowed),
        successors=tuple(map(tuple, successors)),
        predecessors=tuple(predecessors),
        order=tuple(range(len(blocks))),
        block=tuple(number[block] for block in blocks),
        members=tuple(map(tuple, members)),
        footprint=(0,) * len(number),
        sources=frozenset(),
        sinks=frozenset(),
    )
