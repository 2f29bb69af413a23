"""Cut ops: where a graph falls into segments that run one after another."""

from dataclasses import dataclass, replace

import numpy as np

from dlplacer.solvers.instance import Instance
from dlplacer.solvers.intervals import reachable


@dataclass(frozen=True)
class Segment:
    """What runs between two consecutive cut ops.

    Attributes
    ----------
    ops
        Positions in the whole instance, in topological order: the first cut op (unless the segment begins the graph),
        the ops between, the last cut op.
    instance
        These ops alone, without memory, the last one in no time: its makespan is the time from the start of the first
        cut op to the start of the last.
    begins
        Whether there is no first cut op.
    """

    ops: tuple[int, ...]
    instance: Instance
    begins: bool


def find_segments(instance: Instance, last: int) -> list[Segment]:
    """The segments of the ops that lead to `last`, sources of zero time left out.

    A cut op is before or after every other one of these ops. So all that lead to it end before it starts, and all that
    follow start after it ends: segments run one after another, and the start of `last` is no earlier than the sum of
    their makespans. (What leads into a segment from farther back, or from sources, is left out, which lengthens nothing.)
    """
    order = np.array([op for op in instance.order if op not in instance.sources])
    after = reachable(instance, order)
    core = np.zeros(len(order), dtype=bool)
    position = {int(op): number for number, op in enumerate(order)}
    bits = np.unpackbits(after[order], axis=1, count=len(order)).astype(bool)
    core[:] = bits[:, position[last]]
    core[position[last]] = True
    inside = bits[np.ix_(core, core)]
    comparable = inside.sum(axis=0) + inside.sum(axis=1)
    ops = [int(op) for op in order[core]]
    cuts = [number for number in range(len(ops)) if comparable[number] == len(ops) - 1]
    segments = []
    for before, cut in zip([-1, *cuts], cuts, strict=False):
        chosen = ops[max(before, 0) : cut + 1]
        if len(chosen) > 1:
            segments.append(Segment(tuple(chosen), _alone(instance, chosen), before < 0))
    return segments


def _alone(instance: Instance, ops: list[int]) -> Instance:
    part = instance.restricted(ops)
    nothing = (0,) * part.device_count
    return replace(
        part,
        duration=(*part.duration[:-1], nothing),
        footprint=(0,) * len(part.members),
        capacity=(None,) * part.device_count,
    )
