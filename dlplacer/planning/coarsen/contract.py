"""Contract each set of ops into one op (cost, memory, inputs, outputs), and expand plans of the contracted graph."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import networkx as nx

from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import InputError, MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.plan import Plan
from dlplacer.problem.simulate import in_order, replay_plan

Outputs = Mapping[tuple[str, int], int]
"""(Member, number of its output) → number of the group's output; outputs read only inside the group are absent."""


def joined_outputs(graph: OpGraph, members: Sequence[str]) -> Outputs:
    """The outputs of a group: tensors read outside it, and all outputs of members without readers."""
    inside = set(members)
    index: dict[tuple[str, int], int] = {}
    for member in members:
        edges = graph.edges_from[member]
        leaving = sorted({edge.output for edge in edges if edge.target not in inside})
        unread = range(len(graph.op(member).outputs)) if not edges else ()
        for output in dict.fromkeys((*leaving, *unread)):
            index[member, output] = len(index)
    return index


def joined_memory(graph: OpGraph, members: Sequence[str], outputs: Outputs) -> tuple[int, int]:
    """Bytes of `outputs` and of the peak workspace of `members` in series; inner outputs end with their last reader."""
    inside = {member: position for position, member in enumerate(members)}
    # The bytes of the outputs that outlive the group.
    kept = dict.fromkeys(members, 0)
    for member, output in outputs:
        op = graph.op(member)
        size = op.outputs[output].bytes if op.outputs else op.output_bytes
        kept[member] = min(op.output_bytes, kept[member] + size)
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
    return sum(kept.values()), peak


PARTS = "parts"
"""Key in a contracted op's `attrs`: [FLOPs, bytes accessed, dtype] of every member that does any work."""


def contract(
    graph: OpGraph, groups: Mapping[str, Sequence[str]], kind: str, together: Mapping[str, str] | None = None
) -> OpGraph:
    """The graph in which every group is one op, whose `origin` lists the members in execution order.

    Times, FLOPs and bytes accessed are sums, because the members still run in series. Outputs that only members read
    count as workspace, by their peak. Colocation groups that share a contracted op are merged.

    `groups`: Id of the new op → its members, at least one; ``#2`` is appended to an id that another op has.
    `together`: Op → label; ops of one label are colocated, even across groups.

    Raises InputError if groups share an op, a group mixes phases or has no common device, or the new graph has a cycle.
    """
    owner = _owners(graph, groups)
    order = {op_id: position for position, op_id in enumerate(graph.topological_order)}
    sorted_groups = {name: tuple(sorted(members, key=order.__getitem__)) for name, members in groups.items()}
    colocated = _colocation(graph, owner, together or {})
    ops, outputs = [], {}
    for op in graph.ops:
        own_id = owner.get(op.id, op.id)
        if op.id not in owner:
            ops.append(replace(op, colocate=colocated.get(own_id)))
        elif own_id not in outputs:
            members = sorted_groups[own_id[1:]]
            outputs[own_id] = joined_outputs(graph, members)
            ops.append(replace(_joined(graph, own_id, members, kind, outputs[own_id]), colocate=colocated.get(own_id)))
    names = _free_names(ops)
    renamed = [replace(op, id=names[op.id]) if op.id in names else op for op in ops]
    edges = tuple(_edges(graph, owner, outputs, names))
    final = {op_id: names[key] for op_id, key in owner.items()}
    constraints = _renamed(graph.constraints, final)
    return replace(graph, ops=tuple(renamed), edges=edges, structure_sha256=None, constraints=constraints)


def _renamed(constraints: Constraints, name_of: Mapping[str, str]) -> Constraints:
    """The constraints after ops were merged; raises InputError if ops pinned to different devices are merged."""
    merged = Constraints()
    for op, device in constraints.pins.items():
        merged = merged.added(Constraints({name_of.get(op, op): device}))
    sets = (tuple(dict.fromkeys(name_of.get(op, op) for op in ops)) for ops in constraints.colocate)
    return Constraints(merged.pins, tuple(ops for ops in sets if len(ops) > 1))


def members_of(op: Op) -> tuple[str, ...]:
    """The ops that were contracted into an op; only the op itself if it is not contracted."""
    return op.origin if PARTS in op.attrs else (op.id,)


def _owners(graph: OpGraph, groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Op → key of its group, which is never the id of an op."""
    owner: dict[str, str] = {}
    for name, members in groups.items():
        if not members:
            raise InputError(f"group {name!r} is empty; leave it out")
        for member in members:
            if member not in graph.index:
                raise InputError(f"group {name!r} names op {member!r}, which the graph does not have")
            if member in owner:
                raise InputError(
                    f"op {member!r} is in two groups, {owner[member][1:]!r} and {name!r}; take it out of one"
                )
            # No op id starts with a zero byte, so a group may have an op's name until names are assigned.
            owner[member] = f"\0{name}"
    return owner


def _joined(graph: OpGraph, key: str, members: Sequence[str], kind: str, outputs: Outputs) -> Op:
    ops = [graph.op(member) for member in members]
    phases = {op.phase for op in ops}
    if len(phases) > 1:
        raise InputError(
            f"group {key[1:]!r} mixes ops of the phases {', '.join(sorted(map(str, phases)))}; separate them"
        )
    output_bytes, workspace_bytes = joined_memory(graph, members, outputs)
    made = [(graph.op(member), output) for member, output in outputs]
    # Left empty if a member does not list its outputs.
    specs = tuple(op.outputs[output] for op, output in made if output < len(op.outputs))
    return Op(
        key,
        kind,
        time_s=_joined_times(ops),
        flops=sum(op.flops for op in ops),
        bytes_accessed=sum(op.bytes_accessed for op in ops),
        dtype=max(ops, key=lambda op: (op.flops, op.dtype is not None)).dtype,
        outputs=specs if len(specs) == len(made) else (),
        weight_bytes=sum(op.weight_bytes for op in ops),
        gradient_bytes=sum(op.gradient_bytes for op in ops),
        state_bytes=sum(op.state_bytes for op in ops),
        output_bytes=output_bytes,
        workspace_bytes=workspace_bytes,
        phase=ops[0].phase,
        module=_common_path([op.module for op in ops]),
        origin=tuple(name for op in ops for name in members_of(op)),
        devices=_joined_devices(key[1:], ops),
        attrs={PARTS: [part for op in ops for part in _parts(op)]},
    )


def _joined_times(ops: Sequence[Op]) -> float | Mapping[str, float] | None:
    """The sum of times, by device type if any member's is; None if no device type has a time for every member."""
    if all(isinstance(op.time_s, (int, float)) for op in ops):
        return sum(op.time_on("") or 0.0 for op in ops)
    types = dict.fromkeys(kind for op in ops if isinstance(op.time_s, Mapping) for kind in op.time_s)
    times: dict[str, float] = {}
    for kind in types:
        each = [op.time_on(kind) for op in ops]
        known = [time_s for time_s in each if time_s is not None]
        if len(known) == len(each):
            times[kind] = sum(known)
    return times or None


def _parts(op: Op) -> list[list[float | str | None]]:
    if PARTS in op.attrs:
        return list(op.attrs[PARTS])
    return [[op.flops, op.bytes_accessed, op.dtype]] if op.flops or op.bytes_accessed else []


def _joined_devices(name: str, ops: Sequence[Op]) -> tuple[str, ...] | None:
    given = [op.devices for op in ops if op.devices is not None]
    if not given:
        return None
    common = tuple(device for device in given[0] if all(device in devices for devices in given))
    if not common:
        named = " and ".join(", ".join(devices) for devices in dict.fromkeys(given))
        # Only the machine, which is not known here, gives the type of a device.
        raise InputError(f"group {name!r}: its ops have no device or type in common ({named}); separate them")
    return common


def _common_path(paths: Sequence[str | None]) -> str | None:
    """The innermost module that contains all paths, or None."""
    levels = zip(*((path or "").split(".") for path in paths), strict=False)
    return ".".join(names[0] for names in takewhile(lambda names: len({*names}) == 1, levels)) or None


def _colocation(graph: OpGraph, owner: Mapping[str, str], together: Mapping[str, str]) -> dict[str, str]:
    """Op of the contracted graph → its colocation group, if any; groups that share an op are merged."""
    held: dict[str, str] = {}
    meetings = nx.Graph()
    for op in graph.ops:
        for group in (op.colocate, together.get(op.id)):
            if group is not None:
                meetings.add_edge(held.setdefault(owner.get(op.id, op.id), group), group)
    position = {group: place for place, group in enumerate(meetings)}
    name = {
        group: min(joined, key=position.__getitem__) for joined in nx.connected_components(meetings) for group in joined
    }
    return {node: name[group] for node, group in held.items()}


def _free_names(ops: Sequence[Op]) -> dict[str, str]:
    """Key of a group → an id that no other op has."""
    taken = {op.id for op in ops}
    names: dict[str, str] = {}
    for key in (op.id for op in ops if op.id[0] == "\0"):
        name, count = key[1:], 1
        while name in taken:
            count += 1
            name = f"{key[1:]}#{count}"
        taken.add(name)
        names[key] = name
    return names


def _edges(
    graph: OpGraph, owner: Mapping[str, str], outputs: Mapping[str, Outputs], names: Mapping[str, str]
) -> Iterator[Edge]:
    """Edges between different ops: each tensor once per reader; edges without bytes only if no tensor joins the ops."""
    seen: set[tuple[str, str]] = set()
    orders: dict[tuple[str, str], Edge] = {}
    joined: set[tuple[str, str]] = set()
    for edge in graph.edges:
        source, target = owner.get(edge.source, edge.source), owner.get(edge.target, edge.target)
        if source == target:
            continue
        output = outputs[source][edge.source, edge.output] if source in outputs else edge.output
        ends = names.get(source, source), names.get(target, target)
        moved = replace(edge, source=ends[0], target=ends[1], output=output)
        if not edge.bytes and edge.tensor == f"{edge.source}:{edge.output}->{edge.target}":
            orders.setdefault(ends, replace(moved, tensor="", output=0))
        elif (edge.tensor, ends[1]) not in seen:
            seen.add((edge.tensor, ends[1]))
            joined.add(ends)
            yield moved
    yield from (edge for ends, edge in orders.items() if ends not in joined)


_FLOPS_PER_BYTE = 10
"""FLOPs that take about as long as moving a byte, between 5 (a CPU core) and 20 (a V100 in float32)."""


def expanded_plan(plan: Plan, fine: OpGraph) -> Plan:
    """The plan of a coarse graph as a plan of the original graph, with the same devices and order.

    A transfer starts as soon as the op that produces the tensor ends, so the plan may be faster than the coarse plan.
    An op without a time gets a share of its coarse op's time by FLOPs and bytes, or an equal share if all are 0.

    Raises MismatchError if the coarse graph was not made from `fine`.
    """
    origins = [member for op in plan.graph.ops for member in members_of(op)]
    if sorted(origins) != sorted(fine.index):
        odd = sorted(set(origins) ^ fine.index.keys()) or sorted(origins)
        raise MismatchError(f"the plan was not made from this graph; op {odd[0]!r} is only in one of them, or twice")
    timed = _with_shares(plan, fine)
    scheduled = tuple(
        replace(entry, op=member) for entry in in_order(plan) for member in members_of(plan.graph.op(entry.op))
    )
    moved = replace(plan, graph=timed, ops=scheduled, transfers=(), memory={})
    return replay_plan(moved, timed, plan.topology)


def _with_shares(plan: Plan, fine: OpGraph) -> OpGraph:
    """The fine graph with a time for every op on each device type for which the coarse graph has times."""
    types = {device.type for device in plan.topology.devices}
    timed: dict[str, Op] = {}
    for coarse in plan.graph.ops:
        members = [fine.op(name) for name in members_of(coarse)]
        weights = [member.bytes_accessed + member.flops / _FLOPS_PER_BYTE for member in members]
        if not any(weights):
            # Equal shares, because nothing distinguishes the members and the coarse op's time must not be lost.
            weights = [1.0] * len(members)
        whole = sum(weights)
        for member, weight in zip(members, weights, strict=True):
            shares = {kind: time_s * weight / whole for kind in types if (time_s := coarse.time_on(kind)) is not None}
            own = {kind: time_s for kind in types if (time_s := member.time_on(kind)) is not None}
            timed[member.id] = replace(member, time_s={**shares, **own})
    return replace(fine, ops=tuple(timed[op.id] for op in fine.ops))
