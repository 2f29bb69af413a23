"""The largest graphs that models take whole."""

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.units import format_bytes, format_seconds

MOST_OPS = 300_000
"""Ops above which no plan is tried: 106,000 were planned in a minute; the first plan of 10^6 takes more than that."""

_PART_BYTES, _PART_S = 4096, 1.5e-4
"""Memory and CPU seconds for each op and each edge until the first plan: 4.5 KiB on 100,000 ops, 16 s on 60,000."""


EXACT_UP_TO = 40
"""Ops that take time up to which the whole problem is given to the model that proves under every option; a guess."""


def require_size(graph: OpGraph) -> None:
    """Return if a graph is small enough to be planned.

    Raises
    ------
    InputError
        If it has more than `MOST_OPS` ops; names what it would need and the way out.
    """
    ops, parts = len(graph.ops), len(graph.ops) + len(graph.edges)
    if ops > MOST_OPS:
        needed = f"{format_bytes(parts * _PART_BYTES)} and {format_seconds(parts * _PART_S)}"
        raise InputError(
            f"the graph has {ops:,} ops and {len(graph.edges):,} edges; at most {MOST_OPS:,} ops are planned, and "
            f"these would need about {needed} before the first plan; make it coarser: --granularity fused joins chains "
            "of ops, --granularity module makes one op of each module"
        )
