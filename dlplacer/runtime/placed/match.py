"""A captured graph against the plan's: the same graph, the same ops at other shapes, or the inference graph."""

from collections.abc import Mapping

from dlplacer.core.errors import MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.files.structure_hash import first_difference, structure_sha256
from dlplacer.runtime.program.lower import Order


def require_same_graph(plan: Plan, captured: OpGraph) -> None:
    """Return if the plan was made for this graph, costs aside.

    Raises
    ------
    MismatchError
        Naming the first op that differs.
    """
    if structure_sha256(plan.graph) == structure_sha256(captured):
        return
    difference = first_difference(plan.graph, captured)
    made_with = (plan.graph.capture or {}).get("torch", "an unknown version")
    raise MismatchError(
        f"the plan was made for another graph: {difference} (first: the plan, made with torch {made_with}; second: "
        "this model); capture and solve again, or give the model and inputs that the plan was made for"
    )


def order_at_other_shapes(plan: Plan, captured: OpGraph) -> Order:
    """The plan's order for a graph with the same ops at other shapes, for example another batch size.

    Raises
    ------
    MismatchError
        Naming the first op that only one of them has.
    """
    for name in (*plan.graph.index, *captured.index):
        if name not in plan.graph.index or name not in captured.index:
            side = "the plan" if name in plan.graph.index else "the model"
            raise MismatchError(
                f"the model at these shapes and in this mode is another graph: op {name!r} is only in {side}; capture "
                "and solve for them"
            )
    return plan.order


def order_of_inference(plan: Plan, captured: OpGraph) -> Order:
    """An order for the inference graph on the plan's placement.

    An op goes where its group is, or where the plan has the op of the same id or one made from it; else where it has
    the forward op of the same module and kind, or of the same module; else to the device of what it reads.
    """
    hints = _placement_hints(plan)
    made_from = {name: plan.placement[op.id] for op in plan.graph.ops for name in op.origin}
    home: dict[str, str] = {}
    of_group: dict[str | None, str] = {}
    for name in captured.topological_order:
        op = captured.op(name)
        read = (home[edge.source] for edge in captured.edges_into[name])
        home[name] = (
            of_group.get(op.colocate)
            or plan.placement.get(name)
            or made_from.get(name)
            or hints.get((op.module, op.kind))
            or (hints.get((op.module, None)) if op.module else None)
            or next(read, plan.topology.devices[0].id)
        )
        if op.colocate is not None:
            of_group[op.colocate] = home[name]
    return {
        device.id: [name for name in captured.topological_order if home[name] == device.id]
        for device in plan.topology.devices
    }


def _placement_hints(plan: Plan) -> Mapping[tuple[str | None, str | None], str]:
    hints: dict[tuple[str | None, str | None], str] = {}
    for op in plan.graph.ops:
        if op.phase == "forward" and op.module:
            hints.setdefault((op.module, op.kind), plan.placement[op.id])
            if op.kind not in ("parameter", "buffer", "mutation"):
                hints.setdefault((op.module, None), plan.placement[op.id])
    return hints
