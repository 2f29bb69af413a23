"""Parts of a machine that are worth a search of their own: its plan on some devices is a plan of the whole.

Users compare a machine with what they know: its fastest device, two or four of its GPUs, one host, one type. On many
devices with contended links heuristics spread work over links that then hold it up, and searching takes longer.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dlplacer.problem.problem import Problem
from dlplacer.solvers.instance.instance import FAR, Instance

Delays = NDArray[np.int64]
"""[device][device] → total delay of some arcs if each crossed there and back."""


@dataclass(frozen=True)
class SubsetParams:
    """The subsets that are looked at.

    Attributes
    ----------
    sizes
        Devices of the fastest and best connected ones of a pool. Forward graphs with branches gain nothing beyond about
        three devices; 3 is for boxes of four.
    most
        Subsets in all. A guess: every one of them gets a share of the time.
    most_delays
        Of so many arcs, evenly over all, devices are told near from far; 34,000 tables for 32 devices take 1 s.
    """

    sizes: tuple[int, ...] = (2, 4, 8, 16, 3)
    most: int = 6
    most_delays: int = 2000


def device_subsets(
    problem: Problem, instance: Instance, params: SubsetParams = SubsetParams()
) -> list[tuple[int, ...]]:
    """Sets of two or more devices, ascending by size: of each pool the whole, and its fastest, best connected few.

    Pools are the machine, the devices of one type, and *islands*: devices that are nearer to each other than to the
    rest, at every level of nearness. Devices that no op may use take part in none, and those that some op cannot do
    without in all. Of sets that look the same (types, capacities, delays between them) one is kept.
    """
    key = "device_subsets", params
    if key not in problem.derived:
        problem.derived[key] = _subsets(problem, instance, params)
    return list(problem.derived[key])


def _subsets(problem: Problem, instance: Instance, params: SubsetParams) -> list[tuple[int, ...]]:
    allowed = set(instance.allowed)
    everything = tuple(sorted({device for devices in allowed for device in devices}))
    needed = {devices[0] for devices in allowed if len(devices) == 1}
    delays = _delays(instance, params.most_delays)
    work = _work(instance)
    kind = [(device.type, device.memory_bytes) for device in problem.topology.devices]
    used = [tuple(device for device in pool if device in everything) for pool in (*_types(kind), *_islands(delays))]
    pools = list(dict.fromkeys((everything, *used)))
    picked = [_best(pool, size, work, delays) for size in params.sizes for pool in pools if size < len(pool)]
    few = [tuple(sorted(needed.union(devices))) for devices in picked]
    wholes = [tuple(sorted(needed.union(pool))) for pool in pools if len(pool) > 1]
    few, wholes = ([part for part in parts if len(part) < instance.device_count] for parts in (few, wholes))
    found: dict[object, tuple[int, ...]] = {}
    for devices in sorted((*wholes, *few), key=lambda devices: sum(work[device] for device in devices) / len(devices)):
        found.setdefault(_look(devices, kind, work, delays), devices)
    chosen = sorted(found.values(), key=[*few, *wholes].index)[: params.most]
    return sorted(chosen, key=len)


def _work(instance: Instance) -> list[int]:
    """[device] → ticks of all ops there; one that may not run there counts as long as where it takes longest."""
    work = [0] * instance.device_count
    for row, devices, longest in zip(instance.duration, instance.allowed, instance.longest, strict=True):
        for device in range(instance.device_count):
            work[device] += row[device] if device in devices else longest
    return work


def _delays(instance: Instance, most: int) -> Delays:
    arcs = [delay for row in instance.successors for _, delay in row]
    tables = Counter(arcs[:: -(-len(arcs) // most) or 1])
    one_way = np.zeros((instance.device_count, instance.device_count), dtype=np.int64)
    for delay, count in tables.items():
        one_way += count * np.minimum(delay, FAR // max(1, len(instance.successors)))
    return np.asarray(one_way + one_way.T)


def _types(kind: Sequence[tuple[str, int | None]]) -> Iterator[tuple[int, ...]]:
    for name in dict.fromkeys(name for name, _ in kind):
        yield tuple(device for device, (other, _) in enumerate(kind) if other == name)


def _islands(delays: Delays) -> Iterator[tuple[int, ...]]:
    """Components of the devices joined by all pairs up to some delay, for every delay: single-linkage clusters."""
    count = len(delays)
    home = list(range(count))
    seen: set[tuple[int, ...]] = set()
    pairs = sorted((int(delays[pair]), pair) for pair in combinations(range(count), 2))
    for number, (delay, (a, b)) in enumerate(pairs):
        old, new = home[b], home[a]
        home = [new if other == old else other for other in home]
        if number + 1 == len(pairs) or pairs[number + 1][0] > delay:
            for label in set(home):
                island = tuple(device for device, other in enumerate(home) if other == label)
                if 1 < len(island) < count and island not in seen:
                    seen.add(island)
                    yield island


def _best(pool: Sequence[int], size: int, work: Sequence[int], delays: Delays) -> tuple[int, ...]:
    """The fastest devices of a pool; of equally fast ones those of least total delay, grown from the nearest pair."""
    limit = sorted(work[device] for device in pool)[size - 1]
    faster = [device for device in pool if work[device] < limit]
    equal = [device for device in pool if work[device] == limit]

    def grown(begin: Iterable[int]) -> tuple[int, tuple[int, ...]]:
        chosen = list(begin)
        nearness = delays[:, chosen].sum(axis=1)
        left = np.zeros(len(delays), dtype=bool)
        left[equal], left[chosen] = True, False
        while len(chosen) < size:
            nearest = int(np.where(left, nearness, np.iinfo(np.int64).max).argmin())
            chosen.append(nearest)
            left[nearest] = False
            nearness = nearness + delays[:, nearest]
        return int(delays[np.ix_(chosen, chosen)].sum()), tuple(sorted(chosen))

    begins = [faster] if faster or size == 1 else list(combinations(equal, 2))
    return min(map(grown, begins))[1]


def _look(
    devices: Sequence[int], kind: Sequence[tuple[str, int | None]], work: Sequence[int], delays: Delays
) -> tuple[object, ...]:
    """Equal for subsets that a symmetry of the machine maps onto each other; two others are seldom equal."""
    pairs = sorted((*sorted((work[a], work[b])), int(delays[a, b])) for a, b in combinations(devices, 2))
    return tuple(sorted(map(str, (kind[device] for device in devices)))), tuple(pairs)
