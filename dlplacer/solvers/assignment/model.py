"""The assignment of blocks to devices under which the largest load is least, as a model of CP-SAT.

Let x(b, d) be true if block b is on device d. A tensor of block s *arrives* on d if a reader r is there and s is not:
arrives(d) ≥ x(r, d) − x(s, d). Loads of devices and link directions are linear in x and in the arrivals. Each is at
most the period, which is minimised.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ortools.sat.python import cp_model

from dlplacer.problem.loads import Loads
from dlplacer.problem.problem import Problem
from dlplacer.solvers.ilp.variables import Literal, place_blocks
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import ask_time

Place = Sequence[int]
"""[block] → device."""


class AssignmentModel:
    """The model of a problem's placements with its memory rows, whose capacities are the instance's.

    Parameters
    ----------
    least, most
        Bounds on the period in ticks.
    """

    def __init__(self, problem: Problem, instance: Instance, loads: Loads, least: int, most: int) -> None:
        self.problem, self.instance, self.loads = problem, instance, loads
        self.model = cp_model.CpModel()
        self.place = place_blocks(self.model, instance)
        self.period = self.model.new_int_var(least, most, "period")
        self.values: list[tuple[cp_model.IntVar, Callable[[Place], int]]] = []
        self.busy: list[list[tuple[Literal, int]]] = [[] for _ in range(instance.device_count + loads.link_count)]
        self._place_every_block()
        self._fit_into_memory()
        self._compute()
        self._communicate()
        for terms in self.busy:
            literals, ticks = [literal for literal, _ in terms], [size for _, size in terms]
            self.model.add(cp_model.LinearExpr.weighted_sum(literals, ticks) <= self.period)
        self.model.minimize(self.period)

    def hint(self, place: Place, period: int) -> None:
        """Begin at a placement; every variable gets its value there, as CP-SAT completes few hints itself."""
        for block, literals in enumerate(self.place):
            for device, literal in literals.items():
                if isinstance(literal, cp_model.IntVar) and len(literals) > 1:
                    self.model.add_hint(literal, place[block] == device)
        for variable, value in self.values:
            self.model.add_hint(variable, value(place))
        self.model.add_hint(self.period, period)

    def read(self, is_true: Callable[[Literal], bool]) -> list[int]:
        """[block] → device of a solution."""
        return [next(device for device, there in row.items() if is_true(there)) for row in self.place]

    def _place_every_block(self) -> None:
        for literals in self.place:
            self.model.add_exactly_one(literals.values())

    def _fit_into_memory(self) -> None:
        for device, capacity in enumerate(self.instance.capacity):
            here = [
                (row[device], size)
                for row, size in zip(self.place, self.instance.footprint, strict=True)
                if size and device in row
            ]
            if capacity is not None and here:
                used = cp_model.LinearExpr.weighted_sum([there for there, _ in here], [size for _, size in here])
                self.model.add(used <= capacity)

    def _compute(self) -> None:
        for ops, literals in zip(self.instance.members, self.place, strict=True):
            for device, literal in literals.items():
                if ticks := sum(self.instance.duration[op][device] for op in ops):
                    self.busy[device].append((literal, ticks))

    def _communicate(self) -> None:
        block = self.instance.block
        sent: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for request in self.loads.requests:
            source = block[request.source]
            readers = tuple(sorted({block[reader] for reader in request.readers} - {source}))
            if readers:
                sent.setdefault((source, readers), []).append(request.size)
        for (source, readers), sizes in sent.items():
            ask_time()
            _Sent(self, source, readers, sizes).add()

    def new_bool(self, value: Callable[[Place], int]) -> cp_model.IntVar:
        """A literal that is true where `value` of a placement is."""
        literal = self.model.new_bool_var("")
        self.values.append((literal, value))
        return literal


class _Sent:
    """The tensors that a block sends to the same readers."""

    def __init__(self, owner: AssignmentModel, source: int, readers: tuple[int, ...], sizes: Sequence[int]) -> None:
        self.owner, self.source, self.readers, self.sizes = owner, source, readers, sizes
        self.model, self.loads = owner.model, owner.loads
        self.sources = owner.place[source]
        self.targets = list(dict.fromkeys(device for reader in readers for device in owner.place[reader]))

    def add(self) -> None:
        delay, loads = self.owner.problem.delay, self.loads
        pairs = [(a, b) for a in self.sources for b in self.targets if a != b]
        joined = [pair for pair in pairs if all(delay[size][pair[0]][pair[1]] is not None for size in self.sizes)]
        self._forbid(set(pairs) - set(joined))
        sent, received = ({device: set[int]() for device in row} for row in (self.sources, self.targets))
        for a, b in joined:
            both = [loads.paid(size, a, b) for size in self.sizes]
            sent[a].add(sum(paid for paid, _ in both))
            received[b].add(sum(paid for _, paid in both))
        if loads.link_count or any(len(each) > 1 for each in (*sent.values(), *received.values())):
            self._add_pairs(joined)
            return
        for device, each in received.items():
            if ticks := max(each, default=0):
                self.owner.busy[device].append((self._arrives(device), ticks))
        for device, each in sent.items():
            if ticks := max(each, default=0):
                self.owner.busy[device].append((self._leaves(device), ticks))

    def _forbid(self, pairs: set[tuple[int, int]]) -> None:
        for a, b in pairs:
            for reader in self.readers:
                if b in self.owner.place[reader]:
                    self.model.add_bool_or(~self.sources[a], ~self.owner.place[reader][b])

    def _arrives(self, device: int) -> cp_model.IntVar:
        """True if a reader is on a device, and the source is not."""
        source, readers, place = self.source, self.readers, self.owner.place
        arrives = self.owner.new_bool(
            lambda where: where[source] != device and any(where[reader] == device for reader in readers)
        )
        for reader in readers:
            if device in place[reader]:
                here = [self.sources[device]] if device in self.sources else []
                self.model.add_bool_or(arrives, ~place[reader][device], *here)
        return arrives

    def _leaves(self, device: int) -> cp_model.IntVar:
        """True if the source is on a device, and a reader is not."""
        source, readers, place = self.source, self.readers, self.owner.place
        leaves = self.owner.new_bool(
            lambda where: where[source] == device and any(where[reader] != device for reader in readers)
        )
        for reader in readers:
            there = [place[reader][device]] if device in place[reader] else []
            self.model.add_bool_or(leaves, ~self.sources[device], *there)
        return leaves

    def _add_pairs(self, joined: list[tuple[int, int]]) -> None:
        busy = self.owner.busy
        travels = {}
        for a, b in joined:
            travels[a, b] = self.owner.new_bool(partial(self._joins, a, b))
            self.model.add_implication(travels[a, b], self.sources[a])
        for b in self.targets:
            self.model.add_bool_or(~self._arrives(b), *(travels[pair] for pair in joined if pair[1] == b))
        for size in self.sizes:
            for (a, b), literal in travels.items():
                if received := self.loads.paid(size, a, b)[1]:
                    busy[b].append((literal, received))
                for number, ticks in self.loads.on_links(size, a, b):
                    busy[self.owner.instance.device_count + number].append((literal, ticks))
            for a in self.sources:
                self._pay_once(a, {b: travels[a, b] for b in self.targets if (a, b) in travels}, size)

    def _joins(self, a: int, b: int, where: Place) -> int:
        """True if the source is on a, and a reader on b."""
        return where[self.source] == a and any(where[reader] == b for reader in self.readers)

    def _pay_once(self, a: int, travels: Mapping[int, cp_model.IntVar], size: int) -> None:
        """The sender pays for its longest transfer of a tensor."""
        paid = {b: self.loads.paid(size, a, b)[0] for b in travels}
        if not any(paid.values()):
            return
        source, readers = self.source, self.readers
        longest = self.model.new_int_var(0, max(paid.values()), "")
        self.owner.values.append(
            (
                longest,
                lambda where: max((paid.get(where[r], 0) for r in readers if where[source] == a), default=0),
            )
        )
        for b, literal in travels.items():
            self.model.add(longest >= paid[b] * literal)
        self.owner.busy[a].append((longest, 1))
