"""A bound that knows memory: what does not fit on the fast devices must run on the slow ones.

Let P be a path, U the set of devices on which its ops run, W_bd the ticks of block b's ops on device d, P_bd those of
its ops on the path, m_b its bytes and C_d the capacity of d. In every schedule of makespan T

    Σ_b W_bd x_bd ≤ T,   Σ_b m_b x_bd ≤ C_d   for every device d,   Σ_bd P_bd x_bd + MST(U) ≤ T

for some assignment x with Σ_d x_bd = 1: ops of a device run one at a time (eq. 12), footprints fit (eq. 13), and the
ops of a path run one after another (eq. 10), with at least one crossing between the parts of any split of U, so that
the least delays of the crossings sum to no less than a minimum spanning tree of U. Fractions x relax this to a linear
program. Its optimum is not believed: for any a_d, λ_d, π ≥ 0 with Σ a_d + π = 1, weak duality gives

    T ≥ Σ_b min_d (a_d W_bd + π P_bd + λ_d m_b) − Σ_d λ_d C_d + π MST(U),

and this is evaluated in integers at the multipliers that the program found.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise
from math import gcd

import numpy as np

from dlplacer.solvers.bounds.heads_tails import heads, tails
from dlplacer.solvers.instance.instance import FAR, Instance

_MOST_UNITS = 2**21
"""Units of the greatest common divisor up to which all sums are listed, a bit for each: a shift takes 0.03 ms."""


def reachable_capacity(sizes: Iterable[int], capacity: Sequence[int | None]) -> list[int | None]:
    """[device] → the most bytes that some of the sizes fill without exceeding its memory.

    Ten layers of 3 bytes fill 18 of 20 bytes. Where sizes have no large common divisor the sums are too many to list,
    and the capacity is rounded down to a multiple of the divisor.
    """
    taken = tuple(sorted(size for size in sizes if size > 0))
    return [None if room is None else min(room, _reachable(taken, room)) for room in capacity]


@lru_cache(maxsize=64)
def _reachable(sizes: tuple[int, ...], room: int) -> int:
    unit = gcd(*sizes)
    if not unit or sum(sizes) <= room:
        return room
    units = room // unit
    if units > _MOST_UNITS:
        return units * unit
    inside, sums = (1 << (units + 1)) - 1, 1
    for size in sizes:
        sums |= (sums << (size // unit)) & inside
    return (sums.bit_length() - 1) * unit


_UNIT = 2**30
_DEAR = 10.0


@dataclass(frozen=True)
class MemoryAssignmentParams:
    """Limits of the linear programs.

    Attributes
    ----------
    most_devices
        Every set of devices that a path may use gets a program, 2^D of them; above this many devices there is one
        program for all of them, without the spanning tree.
    most_variables
        Groups of equal blocks × devices; larger programs would take seconds.
    """

    most_devices: int = 5
    most_variables: int = 40_000


@dataclass(frozen=True)
class _Group:
    """Equal blocks: how many, ticks in all and on the path, bytes, devices that they may use."""

    count: int
    work: tuple[int, ...]
    on_path: tuple[int, ...]
    size: int
    devices: tuple[int, ...]
    is_on_path: bool


def memory_assignment_bound(instance: Instance, parameters: MemoryAssignmentParams | None = None) -> int:
    """A makespan in ticks that no schedule beats; 0 where memory binds nowhere or the program is too large."""
    if not instance.memory_binds:
        return 0
    parameters = parameters or MemoryAssignmentParams()
    path = _longest_path(instance)
    groups = _groups(instance, path)
    if len(groups) * instance.device_count > parameters.most_variables:
        return 0
    everything = tuple(range(instance.device_count))
    instance = replace(instance, capacity=tuple(reachable_capacity(instance.footprint, instance.capacity)))
    if instance.device_count > parameters.most_devices:
        return _bound(instance, groups, everything, 0)
    least, jumps = _least_crossings(instance, path)
    found = []
    for used in _sets(everything):
        if all(set(used) & set(group.devices) for group in groups if group.is_on_path):
            found.append(_bound(instance, groups, used, _spanning_forest(used, least, jumps)))
    return min(found, default=0)


def _longest_path(instance: Instance) -> list[int]:
    """The ops of a critical path under shortest durations and least delays, of such paths one of many ops."""
    head, tail = heads(instance), tails(instance)
    value = [h + ticks + t for h, ticks, t in zip(head, instance.shortest, tail, strict=True)]
    best = max(value)
    length = [0] * instance.op_count
    before = [-1] * instance.op_count
    for op in instance.order:
        length[op] += instance.shortest[op] + (1 if value[op] == best else 0)
        for end, _ in instance.successors[op]:
            if length[op] > length[end]:
                length[end], before[end] = length[op], op
    op = max(range(instance.op_count), key=length.__getitem__)
    path = []
    while op >= 0:
        path.append(op)
        op = before[op]
    return path[::-1]


def _groups(instance: Instance, path: Sequence[int]) -> list[_Group]:
    on_path = {op for op in path if op != instance.barrier}
    counts: dict[tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...], bool], int] = {}
    for block, ops in enumerate(instance.members):
        devices = instance.allowed[ops[0]]
        rows = [
            tuple(
                sum(instance.duration[op][d] for op in some) if d in devices else 0
                for d in range(instance.device_count)
            )
            for some in (ops, [op for op in ops if op in on_path])
        ]
        key = rows[0], rows[1], instance.footprint[block], devices, not on_path.isdisjoint(ops)
        counts[key] = counts.get(key, 0) + 1
    return [_Group(count, *key) for key, count in counts.items()]


def _sets(devices: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(devices) + 1):
        yield from combinations(devices, size)


def _least_crossings(instance: Instance, path: Sequence[int]) -> tuple[dict[tuple[int, int], int], int]:
    """Pair of devices → least delay of any arc of the path between them, and how often the path passes the barrier.

    The barrier carries no data: there the path may change devices for nothing.
    """
    tables, jumps = set(), 0
    for op, behind in pairwise(path):
        if instance.barrier in (op, behind):
            jumps += instance.barrier == behind
        else:
            tables.add(next(delay for end, delay in instance.successors[op] if end == behind))
    pairs = combinations(range(instance.device_count), 2)
    return {(a, b): min((min(t[a][b], t[b][a]) for t in tables), default=0) for a, b in pairs}, jumps


def _spanning_forest(used: Sequence[int], least: dict[tuple[int, int], int], jumps: int) -> int:
    """Ticks of a minimum spanning tree (Prim) without its `jumps` longest edges.

    With that many free changes of device, the crossings of the path leave at most jumps + 1 parts of the set apart.
    """
    joined, edges = {used[0]}, []
    while len(joined) < len(used):
        ticks, nearest = min((least[min(a, b), max(a, b)], b) for a in joined for b in used if b not in joined)
        joined.add(nearest)
        edges.append(ticks)
    return min(sum(sorted(edges)[: max(0, len(edges) - jumps)]), FAR)


def _bound(instance: Instance, groups: Sequence[_Group], used: Sequence[int], tree: int) -> int:
    price, memory, path = _multipliers(instance, groups, used, tree)
    total = -sum(memory[d] * (instance.capacity[d] or 0) for d in range(instance.device_count)) + path * tree
    for group in groups:
        total += group.count * min(
            price[d] * group.work[d] + path * group.on_path[d] + memory[d] * group.size for d in _devices(group, used)
        )
    weight = sum(price) + path
    return min(FAR, max(0, -(-total // weight))) if weight else 0


def _devices(group: _Group, used: Sequence[int]) -> list[int]:
    return [d for d in group.devices if d in used] if group.is_on_path else list(group.devices)


def _multipliers(
    instance: Instance, groups: Sequence[_Group], used: Sequence[int], tree: int
) -> tuple[list[int], list[int], int]:
    """Dual prices of device ticks and bytes, and of the path, in whole units; all 0 if the program is not solved."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    count = instance.device_count
    capped = [d for d in range(count) if instance.capacity[d] is not None]
    row_of = {d: count + number for number, d in enumerate(capped)}
    path_row = count + len(capped)
    scale_s = float(max((max(g.work) for g in groups), default=0) or 1)
    scale_m = float(max((g.size for g in groups), default=0) or 1)
    entries: list[tuple[int, int, float]] = []
    owners: list[tuple[int, int]] = []
    column = 1
    for number, group in enumerate(groups):
        for d in _devices(group, used):
            for row, value in (
                (d, group.work[d] / scale_s),
                (row_of.get(d, -1), group.size / scale_m),
                (path_row, group.on_path[d] / scale_s),
            ):
                if row >= 0 and value:
                    entries.append((row, column, value))
            owners.append((number, column))
            column += 1
    for row in (*range(count), path_row):
        entries.append((row, 0, -1.0))
    limit = np.zeros(path_row + 1)
    limit[[row_of[d] for d in capped]] = [instance.capacity[d] / scale_m for d in capped]  # type: ignore[operator]
    limit[path_row] = -tree / scale_s
    objective = np.zeros(column + len(capped))
    objective[0] = 1.0
    # Memory may be exceeded at a price no schedule would pay: the program is then feasible, and where memory does not
    # suffice on these devices the multipliers prove a bound beyond any schedule.
    objective[column:] = _DEAR * sum(group.count * max(group.work) for group in groups) / scale_s
    for number, d in enumerate(capped):
        entries.append((row_of[d], column + number, -1.0))
    column += len(capped)
    equal = coo_array((np.ones(len(owners)), tuple(zip(*owners, strict=True))), shape=(len(groups), column))
    rows, columns, values = zip(*entries, strict=True)
    solved = linprog(
        objective,
        A_ub=coo_array((values, (rows, columns)), shape=(path_row + 1, column)).tocsr(),
        b_ub=limit,
        A_eq=equal.tocsr(),
        b_eq=[group.count for group in groups],
        method="highs",
    )
    if solved.status != 0:
        return [0] * count, [0] * count, 0
    dual = -np.minimum(solved.ineqlin.marginals, 0.0)
    price = [round(float(dual[d]) * _UNIT) for d in range(count)]
    memory = [0] * count
    for d in capped:
        memory[d] = round(float(dual[row_of[d]]) * _UNIT * scale_s / scale_m)
    return price, memory, round(float(dual[path_row]) * _UNIT)
