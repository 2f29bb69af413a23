"""A check that a plan names only ops, devices and links of its own problem; other plans cannot be drawn."""

from collections.abc import Iterator

from dlplacer.core.errors import MismatchError
from dlplacer.core.plan import Plan


def require_whole(plan: Plan, where: str) -> None:
    """Return if every op of the plan's graph has its place, and every name is one of its graph and machine.

    Parameters
    ----------
    where
        The plan's file, or what else to call it in messages.

    Raises
    ------
    MismatchError
        Otherwise, with the first name that is wrong; `dlplacer.check` says all, and which rule each breaks.
    """
    wrong = next(_wrong(plan), None)
    if wrong is not None:
        raise MismatchError(f"{where}: {wrong}, and so it cannot be shown; `dlplacer check` says all that is wrong")


def _wrong(plan: Plan) -> Iterator[str]:
    ops, devices, links = plan.graph.index, plan.topology.device_index, plan.topology.link_between
    for entry in plan.ops:
        if entry.op not in ops:
            yield f"op {entry.op!r} is not in its graph"
        if entry.device not in devices:
            yield f"op {entry.op!r} is on {entry.device!r}, which is no device of its topology"
    yield from (f"op {name!r} is not scheduled" for name in ops if name not in plan.placement)
    for transfer in plan.transfers:
        if transfer.source not in ops:
            yield f"tensor {transfer.tensor!r} comes from {transfer.source!r}, which is not in its graph"
        if transfer.target not in devices:
            yield f"tensor {transfer.tensor!r} goes to {transfer.target!r}, which is no device of its topology"
        for hop in (hop for segment in transfer.segments for hop in segment.route):
            if hop not in links:
                yield f"tensor {transfer.tensor!r} goes from {hop[0]!r} to {hop[1]!r}, which no link joins"
