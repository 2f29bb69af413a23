"""Local search over placements and orders, judged by the replay: late acceptance hill climbing (Burke and Bykov 2017).

A move takes a run of the order to another device, or an op to another place in the order. A change is accepted if the
replay is no longer than the current one, or than the one of so many steps ago: there is no temperature to set.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlplacer.problem.dispatch import dispatch_of
from dlplacer.problem.problem import Problem

Judge = Callable[[Sequence[int], Sequence[int]], float | None]
"""[op] → device, and all ops in order → seconds of the replayed step; None if that is no plan."""


@dataclass(frozen=True)
class SearchParams:
    """Parameters of a climb: the length of its memory, and its end.

    Attributes
    ----------
    memory
        Steps that a climb looks back: a longer memory leaves deeper valleys and takes longer to descend.
    patience
        Steps without a better length, as a multiple of the ops, after which a climb begins anew.
    again
        Share of moves that are followed by another one before the replay.
    """

    memory: int = 50
    patience: int = 100
    again: float = 0.3


PARAMS = SearchParams()


class ReplayedSearch:
    """Climbs, each from the best placement and order so far, disturbed more where the last climb found nothing."""

    def __init__(self, problem: Problem, judge: Judge, seed: int) -> None:
        self.problem, self.random = problem, random.Random(seed)
        self._judge, self._known = judge, dict[tuple[int, ...], float | None]()
        self._is_ordered = problem.options.contention == "link"
        self._process = dispatch_of(problem.topology).process
        self.reads = [[arc.source for arc in arcs] for arcs in problem.arcs_into]
        self.readers = [[arc.target for arc in arcs] for arcs in problem.arcs_from]

    def judge(self, device: Sequence[int], order: Sequence[int]) -> float | None:
        """Seconds of the replayed step; None if that is no plan."""
        # Without contended links the order within each process decides alone. Walks on few ops meet plans again.
        kept = order if self._is_ordered else sorted(order, key=lambda op: self._process[device[op]])
        key = (*device, *kept)
        if key not in self._known:
            self._known[key] = self._judge(device, order)
        return self._known[key]

    def run(self, device: Sequence[int], order: Sequence[int], is_over: Callable[[], bool]) -> None:
        """Search from a plan until it is over; the judge keeps the best."""
        best = list(device), list(order), self.judge(device, order)
        kicks = 0
        while not is_over():
            current = list(best[0]), list(best[1])
            for _ in range(kicks):
                self._move(*current)
            found = self._climb(*current, is_over)
            if found[2] is not None and (best[2] is None or found[2] < best[2]):
                best, kicks = found, 0
            else:
                kicks = kicks % (2 * self.problem.op_count) + 1

    def _climb(
        self, device: list[int], order: list[int], is_over: Callable[[], bool]
    ) -> tuple[list[int], list[int], float | None]:
        length = best = self.judge(device, order) or math.inf
        best_device, best_order = device, order
        memory, idle, step = [length] * PARAMS.memory, 0, 0
        while idle < PARAMS.patience * self.problem.op_count and not is_over():
            new_device, new_order = device.copy(), order.copy()
            self._move(new_device, new_order)
            while self.random.random() < PARAMS.again:
                self._move(new_device, new_order)
            found = self.judge(new_device, new_order)
            slot, idle, step = step % PARAMS.memory, idle + 1, step + 1
            if found is not None and (found <= length or found <= memory[slot]):
                device, order, length = new_device, new_order, found
                if length < best:
                    best, best_device, best_order, idle = length, device, order, 0
            memory[slot] = min(memory[slot], length)
        return best_device, best_order, None if math.isinf(best) else best

    def _move(self, device: list[int], order: list[int]) -> None:
        if self.random.random() < 0.5:
            self._to_device(device, order)
        else:
            self._to_place(order)

    def _to_device(self, device: list[int], order: Sequence[int]) -> None:
        """Take those ops of a run of the order that share a device to another one, with their groups."""
        first, count = self.random.randrange(len(order)), len(order)
        last = first + int(count ** self.random.random())
        here, target = device[order[first]], self.random.randrange(self.problem.device_count)
        moved = [op for op in order[first:last] if device[op] == here]
        for op in moved:
            group = self.problem.group_of[op]
            together = (op,) if group is None else self.problem.groups[group]
            if all(target in self.problem.allowed[each] for each in together):
                for each in together:
                    device[each] = target

    def _to_place(self, order: list[int]) -> None:
        """Move an op to another place between its producers and its first reader."""
        place = self.random.randrange(len(order))
        op = order[place]
        reads, readers = set(self.reads[op]), set(self.readers[op])
        low, high = place, place
        while low and order[low - 1] not in reads:
            low -= 1
        while high + 1 < len(order) and order[high + 1] not in readers:
            high += 1
        if low < high:
            del order[place]
            order.insert(self.random.randint(low, high), op)
