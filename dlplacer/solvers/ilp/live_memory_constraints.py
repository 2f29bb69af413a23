"""Memory over time as part of the model: what is alive on a device never exceeds what it holds (``memory: live``)."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import gcd

from ortools.sat.python import cp_model

from dlplacer.problem.problem import Problem
from dlplacer.problem.transfers import Traffic
from dlplacer.solvers.ilp.variables import Linear, Literal, OptionalTransfer, Variables, duration
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import ask_time

Shelf = list[tuple[cp_model.IntervalVar, int]]
"""The tensors that may be on a device: intervals, and bytes while they last."""


def fit_into_memory_at_all_times(
    model: cp_model.CpModel, problem: Problem, instance: Instance, traffic: Traffic, variables: Variables, upper: int
) -> None:
    """Eq. 13 over time. Transfers must be part of the model, and no op may be a source or sink without times."""
    store = _Store(model, problem, instance, variables, upper)
    for block, size in enumerate(instance.footprint):
        for device, here in variables.place[block].items():
            store.put(device, size, 0, upper, here)
    for op in range(problem.op_count):
        ask_time()
        store.op(op, traffic)
    for optional in variables.optional_transfers:
        ask_time()
        store.optional(optional, traffic)
    for shelf, capacity in zip(store.shelves, instance.capacity, strict=True):
        sizes = [size for _, size in shelf]
        if capacity is not None and sum(sizes) > capacity:
            unit = gcd(*sizes)
            intervals = [interval for interval, _ in shelf]
            model.add_cumulative(intervals, [size // unit for size in sizes], capacity // unit)


class _Store:
    """Puts things on shelves from a moment until the last of some others."""

    def __init__(
        self, model: cp_model.CpModel, problem: Problem, instance: Instance, variables: Variables, upper: int
    ) -> None:
        self.model, self.problem, self.instance = model, problem, instance
        self.variables, self.upper = variables, upper
        self.shelves: list[Shelf] = [[] for _ in instance.capacity]
        self.readers: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.output_of: dict[str, int] = {}
        for edge, arc in zip(problem.graph.edges, problem.arcs, strict=True):
            self.readers[arc.source, edge.output].append(arc.target)
            self.output_of[edge.tensor] = edge.output

    def op(self, op: int, traffic: Traffic) -> None:
        """Each output, from the op's start to its last reader or transfer; workspace, while it runs."""
        start, end = self.variables.start[op], self._end(op)
        leaving = [
            optional
            for optional in self.variables.optional_transfers
            if traffic.requests[optional.request].source == op
        ]
        for device, here in self.variables.place[self.instance.block[op]].items():
            # An interval's end must be affine in one variable, which the op's end is not where its time depends on the
            # device; but this interval is there on this device only.
            self.put(device, self.problem.workspace_bytes[op], start, start + self.instance.duration[op][device], here)
            for part in self.problem.graph.output_parts.get(self.problem.graph.ops[op].id, ()):
                readers = [reader for output in part.outputs for reader in self.readers[op, output]]
                until = self._until(end, here, readers, device)
                for optional in leaving:
                    output = self.output_of[traffic.requests[optional.request].tensor]
                    if optional.source == device and output in part.outputs:
                        self.model.add(until >= optional.start[0] + optional.route[0].ticks).only_enforce_if(
                            optional.used
                        )
                self.put(device, part.bytes, start, until, here)

    def optional(self, optional: OptionalTransfer, traffic: Traffic) -> None:
        """The copy, from its last route segment to its last reader; what relays hold."""
        request = traffic.requests[optional.request]
        size = self.problem.sizes_bytes[request.size]
        steps = list(zip(optional.start, optional.route, strict=True))
        for (begin, segment), (later, onward) in pairwise(steps):
            self.put(segment.target, size, begin, later + onward.ticks, optional.used)
        arrival = optional.start[-1] + optional.route[-1].ticks
        self.put(
            optional.target,
            size,
            optional.start[-1],
            self._until(arrival, optional.used, request.keepers, optional.target),
            optional.used,
        )

    def put(
        self, device: int, size: int, begin: cp_model.LinearExprT, until: cp_model.LinearExprT, here: Literal
    ) -> None:
        """Something of a size on a device between two moments, if a literal holds."""
        if size and self.instance.capacity[device] is not None:
            length = self.model.new_int_var(0, self.upper, "")
            interval = self.model.new_optional_interval_var(begin, length, until, here, "")
            self.shelves[device].append((interval, size))

    def _until(
        self, least: cp_model.LinearExprT, here: Literal, readers: Sequence[int], device: int
    ) -> cp_model.IntVar:
        """A moment no earlier than another and than the end of all readers on a device."""
        until = self.model.new_int_var(0, self.upper, "")
        self.model.add(until >= least).only_enforce_if(here)
        for reader in set(readers):
            there = self.variables.place[self.instance.block[reader]].get(device)
            if there is not None:
                self.model.add(until >= self._end(reader)).only_enforce_if(here, there)
        return until

    def _end(self, op: int) -> Linear | int:
        return self.variables.start[op] + duration(self.instance, self.variables, op)
