"""What follows a cut op: not only the segments behind it, but also ops that nothing waits for, such as gradients of
weights. They share the devices with the last segments, and have to be done too.

Everything that follows an op starts after its end, on any schedule. So after an op's end passes at least the time that
what follows it takes by itself, with nothing else to do: the optimum of that part bounds the op's tail.
"""

from collections.abc import Iterator
from dataclasses import replace

from dlplacer.solvers.decomposition.segments import GraphSegment
from dlplacer.solvers.instance.instance import Instance


def suffixes(
    instance: Instance, segments: list[GraphSegment], sizes: tuple[int, ...]
) -> Iterator[tuple[int, Instance]]:
    """The earliest cut op that at most so many working ops follow, and what follows it; for each size in turn.

    Left out are cut ops followed by ops of segments only, of which the segments' own bounds tell as much.

    The part begins with the cut op, in no time; its makespan is the least tail of the op. It has no memory rules.
    """
    inside = {op for segment in segments for op in segment.ops}
    cuts = [segment.ops[0] for segment in segments if not segment.begins]
    cuts += [segment.ops[-1] for segment in segments[-1:]]
    done: set[int] = set()
    for size in sizes:
        chosen: tuple[int, list[int]] | None = None
        for cut in reversed(cuts):
            after = followers(instance, cut)
            if sum(instance.longest[op] > 0 for op in after) > size:
                break
            chosen = cut, after
        if chosen is not None and chosen[0] not in done and not inside.issuperset(chosen[1]):
            done.add(chosen[0])
            yield chosen[0], _part(instance, *chosen)


def followers(instance: Instance, op: int) -> list[int]:
    """All ops to which a path leads from an op, in topological order."""
    found, pending = set[int](), [op]
    while pending:
        for target, _ in instance.successors[pending.pop()]:
            if target not in found:
                found.add(target)
                pending.append(target)
    return [other for other in instance.order if other in found]


def _part(instance: Instance, cut: int, after: list[int]) -> Instance:
    part = instance.restricted([cut, *after])
    return replace(
        part,
        duration=((0,) * part.device_count, *part.duration[1:]),
        footprint=(0,) * len(part.members),
        capacity=(None,) * part.device_count,
    )
