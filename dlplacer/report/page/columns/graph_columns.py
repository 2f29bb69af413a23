"""The ops and edges of a graph as columns: what is the same in every schedule of it."""

from typing import Any

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import PHASES, Op
from dlplacer.core.plan import Plan
from dlplacer.report.page.columns.texts import Texts, visible
from dlplacer.report.plot.positions.op_blocks import blocks_of

_PHASES = (None, *PHASES)


def graph_columns(plan: Plan, texts: Texts) -> dict[str, Any]:
    """Columns over the ops of a plan's graph, in file order, and over its edges.

    Texts are positions in the table, except for `id`; `block` is the part of the model that a picture can colour.
    """
    graph = plan.graph
    blocks = blocks_of(plan)
    edges = [(graph.index[edge.source], graph.index[edge.target], edge.bytes) for edge in graph.edges]
    return {
        "id": [visible(op.id) for op in graph.ops],
        "kind": [texts.of(op.kind) for op in graph.ops],
        "module": [texts.of(op.module) for op in graph.ops],
        "block": [texts.of(blocks[op.id]) for op in graph.ops],
        "phase": [_PHASES.index(op.phase) for op in graph.ops],
        "dtype": [texts.of(_dtypes(op)) for op in graph.ops],
        "shapes": [texts.of(_shapes(op)) for op in graph.ops],
        "outputBytes": [op.output_bytes for op in graph.ops],
        "keptBytes": [op.weight_bytes + op.gradient_bytes + op.state_bytes for op in graph.ops],
        "workspaceBytes": [op.workspace_bytes for op in graph.ops],
        "flops": [round(op.flops) for op in graph.ops],
        "edges": [list(column) for column in zip(*edges, strict=True)] or [[], [], []],
    }


def _dtypes(op: Op) -> str:
    return ", ".join(dict.fromkeys(spec.dtype for spec in op.outputs)) or op.dtype or ""


def _shapes(op: Op) -> str:
    """The outputs' shapes as people write them: ``32×64×8×8, 32``."""
    return ", ".join("×".join(map(str, spec.shape)) or "scalar" for spec in op.outputs)


def same_graph(one: OpGraph, other: OpGraph) -> bool:
    """True if two graphs have the same columns, so that one set serves both."""
    return one is other or (one.ops == other.ops and one.edges == other.edges)
