"""The plan's placement and order, for a graph that shares ops with the plan's."""

from collections.abc import Mapping

import networkx as nx

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.plan import Plan
from dlplacer.problem.simulate import in_order
from dlplacer.runtime.program.lower import Order

_MARKS = ("parameter", "buffer", "mutation", "gradient", "update")
"""Kinds of ops that compute nothing of a module's own."""


def order_like(plan: Plan, captured: OpGraph) -> Order:
    """An order for a graph that shares ops with the plan's: at other shapes, after an edit, or in inference.

    Ops of the plan keep their device and their turn. Others follow their neighbours (see `_homes`), and their turn is
    right after the tensors that they read.
    """
    wiring = [{(edge.source, edge.target) for edge in graph.edges} for graph in (plan.graph, captured)]
    if plan.graph.index.keys() == captured.index.keys() and wiring[0] == wiring[1]:
        return plan.order
    turn = {entry.op: float(position) for position, entry in enumerate(in_order(plan))}
    for name in captured.topological_order:
        if name not in turn:
            turn[name] = max((turn[edge.source] for edge in captured.edges_into[name]), default=0.0)
    # One order of all ops that respects every dependency, cut by device: whatever it is, nothing waits in a circle.
    dependencies = nx.DiGraph((edge.source, edge.target) for edge in captured.edges)
    dependencies.add_nodes_from(captured.index)
    home, order = _homes(plan, captured), {device.id: list[str]() for device in plan.topology.devices}
    for name in nx.lexicographical_topological_sort(dependencies, lambda op: (turn[op], captured.index[op])):
        order[home[name]].append(name)
    return order


def _homes(plan: Plan, captured: OpGraph) -> dict[str, str]:
    """Op of a graph → device, for a graph that shares ops with the plan's.

    An op goes where its group is, or where the plan has the op of the same id or one made from it; else where it has
    the op of the same phase, module and kind, or of the same module; else to the device of what it reads; and what
    reads nothing goes to its first reader.
    """
    hints = _placement_hints(plan)
    made_from = {name: plan.placement[op.id] for op in plan.graph.ops for name in op.origin}
    home: dict[str, str] = {}
    of_group: dict[str | None, str] = {}

    def settle(op: Op, device: str) -> None:
        home[op.id] = device if op.devices is None or device in op.devices else op.devices[0]
        if op.colocate is not None:
            of_group.setdefault(op.colocate, home[op.id])

    for name in captured.topological_order:
        op = captured.op(name)
        sources = [edge.source for edge in captured.edges_into[name]]
        found = (
            of_group.get(op.colocate)
            or plan.placement.get(name)
            or made_from.get(name)
            or hints.get((op.phase, op.module, op.kind))
            or (hints.get((op.phase, op.module, None)) if op.module else None)
            or next((home[source] for source in sources if source in home), None)
        )
        if found is None and not sources:
            continue  # until what reads it has a device
        settle(op, found or plan.topology.devices[0].id)
        for source in sources:
            if source not in home:
                settle(captured.op(source), home[name])
    for op in captured.ops:
        if op.id not in home:
            settle(op, of_group.get(op.colocate) or plan.topology.devices[0].id)
    return home


def _placement_hints(plan: Plan) -> Mapping[tuple[str | None, str | None, str | None], str]:
    """(phase, module, kind) → device, and with None for any kind that computes; of the first op in the graph."""
    hints: dict[tuple[str | None, str | None, str | None], str] = {}
    for op in plan.graph.ops:
        if op.module:
            hints.setdefault((op.phase, op.module, op.kind), plan.placement[op.id])
            if op.kind not in _MARKS:
                hints.setdefault((op.phase, op.module, None), plan.placement[op.id])
    return hints
