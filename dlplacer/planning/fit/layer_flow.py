"""The best of all placements of a chain, contiguous or not, as an integer flow over kinds of ops and devices.

A placement is a walk through the devices, op by op. Because layers repeat, the model only counts how often the walk
goes from a kind of op on one device to the next kind on another. Counts belong to some walk if they are balanced at
each node and the nodes are connected (Euler). So the model is exact, and only as large as a period of layers. If a
solution has nodes that no walk reaches, a constraint is added that connects them, as for subtours in the travelling
salesman problem (Dantzig, Fulkerson and Johnson 1954).
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from dlplacer.core.op import Op
from dlplacer.machines.cores import usable_cores
from dlplacer.planning.fit.chain import ChainCosts
from dlplacer.solvers.ilp.cp_sat_search import new_solver, solve_in_thread
from dlplacer.solvers.instance.time_limit import time_is_up

Node = tuple[int, int, int]
"""A kind of op (its place in the periods), its device, and the device of its run, which may differ for experts."""
Arc = tuple[Node, Node]

_OUTSIDE = (-1, -1, -1)
"""The node before the first op and after the last."""

total = cp_model.LinearExpr.sum
_TICKS = 2**32
"""Ticks in the value of a known split, or else in the sum of longest times; rounding hides less than a millionth."""


@dataclass(frozen=True)
class Found:
    """The best placement, if one was found, a lower bound in seconds, and whether the placement attains it.

    An infinite bound means that no placement fits.
    """

    placement: tuple[int, ...] | None
    bound_s: float
    optimal: bool


def periods_of(kinds: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Length and repetitions of the consecutive periods in a sequence of kinds, found greedily."""
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
    chain: ChainCosts,
    seconds: float,
    known: Sequence[int] | None = None,
    largest: bool = False,
    follows: NDArray[np.bool_] | None = None,
    workers: int | None = None,
    seed: int = 0,
) -> Found:
    """The placement with the least sum of op times and crossing times, and its bound.

    `largest`: Minimize the largest load of a device; crossings count only if `follows` is set, and only between runs.
    `follows`: [from][to] → whether a run on one device may follow a run on another; each device then has at most one
    run, except for experts. If `follows` is None, any runs are allowed.
    """
    flow = _Flow(chain, None if known is None else chain.value_s(known, largest), largest, follows)
    bound_s, until = 0.0, time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        solver = new_solver(workers or len(usable_cores()), seed, left_s, relaxes_well=True)
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
        flow.connect(apart)
        devices = {node[1] for node in apart}
        if devices.isdisjoint(node[1] for node in reached):
            flow.connect(node for node in flow.passes if node[1] in devices)
    return Found(None, bound_s, False)


class _Flow:
    """The model: the number of uses of each arc, memory, time, and cuts that connect the used nodes."""

    def __init__(
        self, chain: ChainCosts, value_s: float | None, largest: bool, follows: NDArray[np.bool_] | None
    ) -> None:
        self.chain, self.model = chain, cp_model.CpModel()
        self.slots = _slots(periods_of(_kinds(chain)))
        self.often = Counter(self.slots)
        self.firsts = {slot: number for number, slot in reversed(list(enumerate(self.slots)))}
        finite = np.where(np.isfinite(chain.time_s), chain.time_s, 0.0)
        most_s = float(finite.max(axis=1).sum() + chain.crossing_s[1:-1].max(axis=(1, 2), initial=0.0).sum())
        self.tick_s = (value_s or most_s or 1.0) / _TICKS
        self.most_ticks = self._ticks(most_s)
        self.arcs: dict[Arc, cp_model.IntVar] = {}
        self._add_arcs(follows)
        self.used: dict[Node, cp_model.IntVar] = {}
        # A walk leaves a node as often as it enters it.
        leaving: dict[Node, list[cp_model.IntVar]] = defaultdict(list)
        for (one, _), variable in self.arcs.items():
            leaving[one].append(variable)
        for node in leaving.keys() - {_OUTSIDE}:
            self.model.add(total(leaving[node]) == self.passes.get(node, 0))
        for node in self.passes.keys() - leaving.keys():
            self.model.add(self.passes[node] == 0)
        self._fit_into_memory()
        self._minimize(largest, follows is not None)

    def _nodes(self, slot: int, limited: bool) -> list[Node]:
        if slot < 0:
            return [_OUTSIDE]
        op = self.firsts[slot]
        devices = np.flatnonzero(np.isfinite(self.chain.time_s[op])).tolist()
        if limited and is_experts(self.chain.ops[op]):
            return [(slot, device, home) for device in devices for home in range(len(self.chain.devices))]
        return [(slot, device, device) for device in devices]

    def _add_arcs(self, follows: NDArray[np.bool_] | None) -> None:
        limited, may_follow = follows is not None, follows if follows is not None else np.ones((0, 0), dtype=bool)
        steps = Counter(zip((-1, *self.slots), (*self.slots, -1), strict=True))
        coming: dict[Node, list[cp_model.IntVar]] = {}
        begins: dict[int, list[cp_model.IntVar]] = defaultdict(list)
        for (slot, after), count in steps.items():
            keeps = limited and after >= 0 and is_experts(self.chain.ops[self.firsts[after]])
            variables = []
            for one in self._nodes(slot, limited):
                for other in self._nodes(after, limited):
                    moves = one[2] != other[2] and after >= 0
                    if limited and moves and slot >= 0 and (keeps or not may_follow[one[2], other[2]]):
                        continue
                    variable = self.arcs[one, other] = self.model.new_int_var(0, count, "")
                    variables.append(variable)
                    coming.setdefault(other, []).append(variable)
                    if limited and moves:
                        begins[other[2]].append(variable)
            self.model.add(total(variables) == count)
        for variables in begins.values():
            self.model.add(total(variables) <= 1)
        self.passes = {node: total(variables) for node, variables in coming.items() if node != _OUTSIDE}

    def _fit_into_memory(self) -> None:
        size = {slot: int(self.chain.sizes[op]) for slot, op in self.firsts.items()}
        tied = self.slots[-1] if self.chain.shared_bytes else None
        for device, room in enumerate(self.chain.capacities.tolist()):
            if not math.isfinite(room):
                continue
            here = [(node[0], passes) for node, passes in self.passes.items() if node[1] == device]
            held = [size[slot] * passes for slot, passes in here]
            self.model.add(total([*held, -int(self.chain.shared_bytes) * self._both_ends(device)]) <= int(room))
            # At most room ÷ size ops of at least this size fit; the relaxation would add a fraction of another.
            for least in {size[slot] for slot, _ in here if size[slot]}:
                large = [passes for slot, passes in here if size[slot] >= least and slot != tied]
                self.model.add(total(large) <= int(room) // least)

    def _both_ends(self, device: int) -> cp_model.LinearExprT:
        """At most 1 if both ops that share weights are on a device, else 0."""
        ends = [(self.slots[op], device, device) for op in (self.chain.embedding, -1)]
        if ends[0] == ends[1] or not all(end in self.passes for end in ends):
            return 0
        both = self.model.new_bool_var("")
        for end in ends:
            self.model.add(both <= self.passes[end])
        return both

    def _minimize(self, largest: bool, limited: bool) -> None:
        loads: dict[int, list[cp_model.LinearExprT]] = defaultdict(list)
        for (slot, device, _), passes in self.passes.items():
            loads[device].append(self._ticks(self.chain.time_s[self.firsts[slot], device]) * passes)
        crossings = []
        for (one, other), variable in self.arcs.items():
            if _OUTSIDE not in (one, other) and (not largest or (limited and one[2] != other[2])):
                crossing_s = self.chain.crossing_s[self.firsts[one[0]] + 1, one[1], other[1]]
                crossings.append(self._ticks(crossing_s) * variable)
        if not largest:
            self.model.minimize(total([*map(total, loads.values()), *crossings]))
            return
        most = self.model.new_int_var(0, self.most_ticks, "")
        for load in (*map(total, loads.values()), *crossings):
            self.model.add(load <= most)
        self.model.minimize(most)

    def _ticks(self, seconds: float) -> int:
        return int(seconds / self.tick_s)

    def connect(self, nodes: Iterable[Node]) -> None:
        """Add a cut: a walk that uses one of these nodes enters them from another node."""
        inside = {*nodes}
        coming = [variable for (one, other), variable in self.arcs.items() if other in inside and one not in inside]
        for node in inside:
            if node not in self.used:
                self.used[node] = self.model.new_bool_var("")
                self.model.add(self.passes[node] <= self.often[node[0]] * self.used[node])
            self.model.add(total(coming) >= self.used[node])

    def placement(self, steps: Mapping[Arc, int]) -> tuple[int, ...]:
        """[op] → device: a walk with these counts of arcs (Hierholzer) that stays on a device as long as it can."""
        onward: dict[Node, list[Node]] = defaultdict(list)
        for (one, other), count in sorted(steps.items(), key=lambda each: each[0][0][1] == each[0][1][1]):
            onward[one] += [other] * count
        trail, walk = [_OUTSIDE], []
        while trail:
            if onward[trail[-1]]:
                trail.append(onward[trail[-1]].pop())
            else:
                walk.append(trail.pop())
        return tuple(node[1] for node in reversed(walk[1:-1]))


def is_experts(op: Op) -> bool:
    """True if an op consists of experts without the rest of their layer."""
    return list(op.meta.get("kinds", ())) == ["experts"]


def _kinds(chain: ChainCosts) -> list[Hashable]:
    """[op] → its kind: all its data in the model, and the costs of the next crossing."""
    crossings = chain.crossing_s[1:].reshape(len(chain.ops), -1)
    rows = np.concatenate([chain.time_s, crossings, chain.sizes[:, None]], axis=1).tolist()
    ends = {chain.embedding, len(rows) - 1} if chain.shared_bytes else {}
    return [(is_experts(chain.ops[op]), op in ends and op, *row) for op, row in enumerate(rows)]


def _slots(periods: Sequence[tuple[int, int]]) -> list[int]:
    """[op] → its place in the periods; repetitions of a period have the same places."""
    slots: list[int] = []
    for length, times in periods:
        begin = slots[-1] + 1 if slots else 0
        slots += list(range(begin, begin + length)) * times
    return slots


def _reached(steps: Iterable[Arc]) -> set[Node]:
    """Nodes that can be reached from outside the chain."""
    graph = nx.DiGraph(list(steps))
    return {_OUTSIDE, *nx.descendants(graph, _OUTSIDE)}
