"""The best of all placements of a chain, contiguous or not, as an integer flow over kinds of ops and devices.

A placement is a walk: op by op, through the devices. Layers repeat, so only the number of times matters that the walk
goes from one kind of op on one device to the next kind on another. Numbers that are balanced at each node and whose
nodes are connected are those of a walk (Euler), so the model is exact, and as large as a period of layers. Nodes that no
walk reaches are cut off when a solution has some, as subtours are in the travelling salesman problem (Dantzig,
Fulkerson and Johnson 1954).
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from dlplacer.planning.fit.chain import Chain
from dlplacer.solvers.ilp.cp_sat_search import new_solver
from dlplacer.solvers.ilp.solver_thread import solve_in_thread
from dlplacer.solvers.instance.time_limit import time_is_up

Node = tuple[int, int]
"""A kind of op by its place in the periods, and a device; ``(-1, -1)`` before the first op and behind the last."""
Arc = tuple[Node, Node]

_OUTSIDE = (-1, -1)
_TICKS = 2**32
"""Ticks in the value of a split, or in the sum of the longest times: rounding hides less than a millionth."""


@dataclass(frozen=True)
class Found:
    """The best placement, if one was found, a value in seconds that none is below, and whether they are one.

    A bound of infinity says that nothing fits.
    """

    placement: tuple[int, ...] | None
    bound_s: float
    optimal: bool


def periods_of(kinds: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Length and repetitions of the periods, one behind the other, that a row of kinds is made of; greedy."""
    found, begin = [], 0
    while begin < len(kinds):
        best = 1, 1
        for length in range(1, (len(kinds) - begin) // 2 + 1):
            end = begin + length
            while end < len(kinds) and kinds[end] == kinds[end - length]:
                end += 1
            times = (end - begin) // length
            if times > 1 and length * (times - 1) > best[0] * (best[1] - 1):
                best = length, times
        found.append(best)
        begin += best[0] * best[1]
    return found


def best_placement(
    chain: Chain, known: Sequence[int] | None, seconds: float, workers: int | None = None, seed: int = 0
) -> Found:
    """The placement of least sum of times and crossings, with its bound.

    Parameters
    ----------
    known
        A placement that fits, to start from.
    """
    flow = _Flow(chain, None if known is None else chain.value_s(known))
    if known is not None:
        flow.start_from(known)
    bound_s, until = 0.0, time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        solver = new_solver(workers or 1, seed, left_s, relaxes_well=True)
        status = solve_in_thread(solver, flow.model, left_s, time_is_up)
        if status == cp_model.INFEASIBLE:
            return Found(None, math.inf, True)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            break
        bound_s = max(bound_s, solver.best_objective_bound * flow.tick_s)
        steps = {arc: count for arc, number in flow.arcs.items() if (count := solver.value(number))}
        reached = _reached(steps)
        apart = {node for node, _ in steps} - reached
        if not apart:
            return Found(flow.placement(steps), bound_s, status == cp_model.OPTIMAL)
        devices = {device for _, device in apart} - {device for _, device in reached}
        flow.connect({node for node in flow.used if node[1] in devices} or apart)
    return Found(None, bound_s, False)


class _Flow:
    """The model: how often each arc is gone, memory, time, and cuts that connect what is used."""

    def __init__(self, chain: Chain, value_s: float | None) -> None:
        self.chain, self.model = chain, cp_model.CpModel()
        self.periods = periods_of(
            [(size, *row) for size, row in zip(chain.sizes, map(tuple, _rows(chain)), strict=True)]
        )
        self.slots = _slots(self.periods)
        finite = np.where(np.isfinite(chain.time_s), chain.time_s, 0.0)
        most_s = float(finite.max(axis=1).sum() + chain.crossing_s[1:-1].max(axis=(1, 2), initial=0.0).sum())
        self.tick_s = (value_s or most_s or 1.0) / _TICKS
        self.arcs: dict[Arc, cp_model.IntVar] = {}
        self.used: dict[Node, cp_model.IntVar] = {}
        self._add_arcs()
        self._add_nodes()
        for device in range(len(chain.devices)):
            self.connect({node for node in self.used if node[1] == device})

    def _add_arcs(self) -> None:
        firsts = {slot: number for number, slot in reversed(list(enumerate(self.slots)))}
        steps: Counter[tuple[int, int]] = Counter(zip((-1, *self.slots), (*self.slots, -1), strict=True))
        nodes = {
            slot: [(slot, device) for device in np.flatnonzero(np.isfinite(self.chain.time_s[op])).tolist()]
            for slot, op in firsts.items()
        }
        nodes[-1] = [_OUTSIDE]
        cost = []
        for (slot, after), count in steps.items():
            crossing_s = self.chain.crossing_s[firsts[slot] + 1] if min(slot, after) >= 0 else None
            arcs = [(one, other) for one in nodes[slot] for other in nodes[after]]
            for one, other in arcs:
                self.arcs[one, other] = self.model.new_int_var(0, count, "")
                if crossing_s is not None:
                    cost.append(int(crossing_s[one[1], other[1]] / self.tick_s) * self.arcs[one, other])
            self.model.add(sum(self.arcs[arc] for arc in arcs) == count)
        coming: dict[Node, list[cp_model.IntVar]] = defaultdict(list)
        for (_, other), number in self.arcs.items():
            coming[other].append(number)
        self.passes = {node: sum(coming[node]) for slot in firsts for node in nodes[slot]}
        for (slot, device), passes in self.passes.items():
            cost.append(int(self.chain.time_s[firsts[slot], device] / self.tick_s) * passes)
        self.model.minimize(sum(cost))
        self.sizes = {slot: int(self.chain.sizes[op]) for slot, op in firsts.items()}

    def _add_nodes(self) -> None:
        often = Counter(self.slots)
        leaving: dict[Node, list[cp_model.IntVar]] = defaultdict(list)
        for (one, _), number in self.arcs.items():
            leaving[one].append(number)
        for node, passes in self.passes.items():
            self.model.add(sum(leaving[node]) == passes)
            self.used[node] = self.model.new_bool_var("")
            self.model.add(passes <= often[node[0]] * self.used[node])
            self.model.add(passes >= self.used[node])
        for device, room in enumerate(self.chain.capacities.tolist()):
            held = [self.sizes[slot] * passes for (slot, place), passes in self.passes.items() if place == device]
            if np.isfinite(room) and held:
                self.model.add(sum(held) <= int(room))

    def connect(self, nodes: Iterable[Node]) -> None:
        """Cut: a walk that uses one of these nodes comes into them from elsewhere."""
        inside = {*nodes}
        coming = [number for (one, other), number in self.arcs.items() if other in inside and one not in inside]
        for node in inside:
            self.model.add(sum(coming) >= self.used[node])

    def start_from(self, placement: Sequence[int]) -> None:
        """Hint at the numbers of a placement."""
        nodes = [_OUTSIDE, *zip(self.slots, placement, strict=True), _OUTSIDE]
        steps = Counter(zip(nodes[:-1], nodes[1:], strict=True))
        for arc, number in self.arcs.items():
            self.model.add_hint(number, steps[arc])

    def placement(self, steps: dict[Arc, int]) -> tuple[int, ...]:
        """[op] → device: a walk that goes each arc as often as told (Hierholzer), staying on a device while it can."""
        onward: dict[Node, list[Node]] = defaultdict(list)
        for (one, other), count in sorted(steps.items(), key=lambda each: each[0][0][1] == each[0][1][1]):
            onward[one] += [other] * count
        trail, walk = [_OUTSIDE], []
        while trail:
            if onward[trail[-1]]:
                trail.append(onward[trail[-1]].pop())
            else:
                walk.append(trail.pop())
        return tuple(device for _, device in reversed(walk[1:-1]))


def _rows(chain: Chain) -> np.ndarray:
    """[op] → its times, and the costs of what follows it; the last op crosses to nothing."""
    crossings = chain.crossing_s[1:].reshape(len(chain.ops), -1)
    return np.concatenate([chain.time_s, crossings], axis=1)


def _slots(periods: Sequence[tuple[int, int]]) -> list[int]:
    """[op] → its place in the periods, of which each is counted once."""
    slots: list[int] = []
    for length, times in periods:
        begin = slots[-1] + 1 if slots else 0
        slots += list(range(begin, begin + length)) * times
    return slots


def _reached(steps: Iterable[Arc]) -> set[Node]:
    """Nodes on a walk from the outside."""
    onward = defaultdict(set)
    for one, other in steps:
        onward[one].add(other)
    reached, ahead = {_OUTSIDE}, [_OUTSIDE]
    while ahead:
        new = onward[ahead.pop()] - reached
        reached |= new
        ahead += new
    return reached
