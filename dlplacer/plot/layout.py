"""Where the ops of a plan stand in a picture of its graph.

The forward pass runs from left to right, branches one above the other; the backward pass runs back below it, every op
under the forward op of its module, and the optimizer below that.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from dlplacer.graph import Op
from dlplacer.plan import Plan
from dlplacer.plot.kinds import computes

_BAND_GAP = 1.4
_CROWDED = 0.3

Arrows = Mapping[str, tuple[str, ...]]
"""Op → the ops that it reads from, both shown."""


@dataclass(frozen=True)
class Layout:
    """Positions of the shown ops.

    Attributes
    ----------
    x
        Op → column: how many shown ops lie before it at most.
    y
        Op → lane: above 0 forward, below 0 backward and optimizer.
    edges
        (producer, consumer) of the shown ops; ops that are not shown are passed through.
    """

    x: Mapping[str, float]
    y: Mapping[str, float]
    edges: tuple[tuple[str, str], ...]


def lay_out(plan: Plan) -> Layout:
    """A layered layout of the ops that compute and take time; of all ops if there are none."""
    shown = _shown(plan)
    sources = _sources(plan, shown)
    bands: dict[str, list[str]] = {"forward": [], "backward": [], "optimizer": []}
    for op_id in plan.graph.topological_order:
        if op_id in shown:
            bands[plan.graph.op(op_id).phase or "forward"].append(op_id)
    x, lane = _forward(plan, bands["forward"], sources)
    x, lane = dict(x), dict(lane)
    y = {op_id: 0.5 * _BAND_GAP + lane[op_id] for op_id in bands["forward"]}
    depth = 0.0
    for band in ("backward", "optimizer"):
        band_x, band_lane = _mirrored(plan, bands[band], sources, x, lane)
        y |= {op_id: -0.5 * _BAND_GAP - depth - band_lane[op_id] for op_id in bands[band]}
        depth += max(band_lane.values(), default=0.0) + _BAND_GAP
        x |= band_x
        lane |= band_lane
    edges = tuple((source, op_id) for op_id in shown for source in sources[op_id])
    return Layout(x, y, edges)
