"""Times that a float can hold, and bytes that a machine word can, whatever a plan does."""

import sys

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Link, Topology
from dlplacer.core.units import format_bytes

_MOST_S = sys.float_info.max

MOST_BYTES = 2**60
"""CP-SAT and compiled code add up bytes in words of 64 bits; an EiB is more than any machine has."""


def require_countable_bytes(graph: OpGraph) -> None:
    """Return if all that a step could ever keep is less than `MOST_BYTES`.

    Raises
    ------
    InputError
        Names the op that takes most, or the edge.
    """
    kept = sum(op.footprint_bytes for op in graph.ops)
    if kept + 2 * sum(edge.bytes for edge in graph.edges) < MOST_BYTES:
        return
    most = max(graph.ops, key=lambda op: op.footprint_bytes)
    what = f"op {most.id!r} takes {format_bytes(most.footprint_bytes)}"
    edge = max(graph.edges, key=lambda edge: edge.bytes, default=None)
    if edge is not None and edge.bytes > most.footprint_bytes:
        what = f"the tensor from {edge.source!r} to {edge.target!r} has {format_bytes(edge.bytes)}"
    raise InputError(f"{what}; ops and tensors must take less than {format_bytes(MOST_BYTES)} in all; check its bytes")


def require_finite_span(graph: OpGraph, topology: Topology) -> None:
    """Return if all ops at their slowest, all tensors over every link, and all issues, add up to a finite time.

    Raises
    ------
    InputError
        Names what takes most.
    """
    kinds, moved_bytes = topology.device_types, sum(float(edge.bytes) for edge in graph.edges)
    op_s = [max(op.time_on(kind) or 0.0 for kind in kinds) for op in graph.ops]
    link_s = [_all_s(link, moved_bytes, len(graph.edges)) if graph.edges else 0.0 for link in topology.links]
    issue_s = [len(graph.ops) * (device.dispatch_s or 0.0) for device in topology.devices]
    if sum(op_s) + sum(link_s) + sum(issue_s) < _MOST_S:
        return
    most_s = max(*op_s, *link_s, *issue_s)
    if most_s in op_s:
        what, remedy = f"op {graph.ops[op_s.index(most_s)].id!r} takes {most_s:.3g} s", "'time_s'"
    elif most_s in link_s:
        link = topology.links[link_s.index(most_s)]
        what = f"link {link.source!r} – {link.target!r} takes {most_s:.3g} s for all tensors"
        remedy = "rate, latency and their 'bytes'"
    else:
        device = topology.devices[issue_s.index(most_s)]
        what, remedy = f"device {device.id!r} takes {most_s:.3g} s to issue all ops", "'dispatch_s'"
    raise InputError(f"{what}; ops, links and issues must take less than {_MOST_S:.3g} s in all; check its {remedy}")


def _all_s(link: Link, moved_bytes: float, count: int) -> float:
    return moved_bytes / link.total_bytes_per_s + count * link.latency_s
