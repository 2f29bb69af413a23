"""Models of the placement alone: is there any that all rules but time allow, and which has the least largest load?

Every placement can be scheduled, one op after another. So without memory over time a problem is infeasible exactly if
no placement exists. Loads are those of steady state; or one alone, the length of a path through all ops, if ops run one
after another whatever the placement. With a literal for each device pair of an arc the linear relaxation is that of
paths through (op, device), which is close; that of a model with start times, whose delays hang on clauses, is not.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from ortools.sat.python import cp_model

from dlplacer.problem.live_memory import input_bytes
from dlplacer.problem.problem import Problem
from dlplacer.solvers.ilp import constraints
from dlplacer.solvers.ilp.constraints import Literal, Variables
from dlplacer.solvers.ilp.cp_sat_search import new_solver, solve_in_thread
from dlplacer.solvers.instance.instance import FAR, Instance, build_instance
from dlplacer.solvers.instance.placement_loads import PlacementTables
from dlplacer.solvers.instance.time_limit import OutOfTimeError, ask_time, ends_when, now, time_is_up

_MOST_WORKING = 20_000
"""Ops × devices up to which working sets are looked at: a row for each of them."""

WORKING = "working"
"""Under ``memory: live``, part of the memory family: room for what an op reads and writes while it runs."""

FAMILIES = ("memory", "pins", "colocation", "routes")
"""Rules that can forbid a placement: eq. 13, allowed devices, groups, and eq. 8 (devices that no route joins)."""

Place = Sequence[int]
"""[block] → device."""


class AssignmentModel:
    """The model of an instance's placements, and of loads, the largest of which is minimised.

    Parameters
    ----------
    tables
        The loads; None for a model of placements alone.
    least, most
        Bounds on the largest load in ticks.
    without
        Families to ignore, or `WORKING`.
    """

    def __init__(
        self,
        problem: Problem,
        instance: Instance,
        tables: PlacementTables | None = None,
        least: int = 0,
        most: int = 0,
        without: Container[str] = (),
    ) -> None:
        self.instance, self.model = instance, cp_model.CpModel()
        self.largest = self.model.new_int_var(least, most, "largest")
        variables = Variables(constraints.place_blocks(self.model, instance), (), self.largest)
        self.place = variables.place
        self.values: list[tuple[cp_model.IntVar, Callable[[Place], int]]] = []
        constraints.place_every_op(self.model, instance, variables)
        if "routes" not in without:
            constraints.join_communicating_ops(self.model, instance, variables)
        if "memory" not in without:
            constraints.fit_into_memory(self.model, instance, variables)
            if WORKING not in without and problem.options.memory == "live":
                leave_working_room(self.model, problem, [self.place[block] for block in instance.block])
        if tables is not None:
            self._add_loads(tables)

    def _add_loads(self, tables: PlacementTables) -> None:
        self.busy: list[list[tuple[Literal, int]]] = [[] for _ in range(tables.load_count)]
        for work, literals in zip(tables.work.tolist(), self.place, strict=True):
            for device, literal in literals.items():
                if work[device]:
                    self.busy[tables.load_of[device]].append((literal, work[device]))
        sent: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for number, (source, kind) in enumerate(zip(tables.source.tolist(), tables.kind.tolist(), strict=True)):
            sent.setdefault((source, tuple(tables.readers(number))), []).append(kind)
        for (source, readers), kinds in sent.items():
            ask_time()
            _Sent(self, tables, source, readers, kinds).add()
        for terms in self.busy:
            load = cp_model.LinearExpr.weighted_sum([literal for literal, _ in terms], [ticks for _, ticks in terms])
            self.model.add(load <= self.largest)
        self.model.minimize(self.largest)

    def hint(self, place: Place, largest: int) -> None:
        """Begin at a placement; every variable gets its value there, as CP-SAT completes few hints itself."""
        for block, literals in enumerate(self.place):
            for device, literal in literals.items():
                if isinstance(literal, cp_model.IntVar) and len(literals) > 1:
                    self.model.add_hint(literal, place[block] == device)
        for variable, value in self.values:
            self.model.add_hint(variable, value(place))
        self.model.add_hint(self.largest, largest)

    def read(self, is_true: Callable[[Literal], bool]) -> list[int]:
        """[block] → device of a solution."""
        return [next(device for device, there in row.items() if is_true(there)) for row in self.place]

    def new_bool(self, value: Callable[[Place], int]) -> cp_model.IntVar:
        """A literal that is true where `value` of a placement is."""
        literal = self.model.new_bool_var("")
        self.values.append((literal, value))
        return literal


class _Sent:
    """The tensors that a block sends to the same readers."""

    def __init__(
        self, owner: AssignmentModel, tables: PlacementTables, source: int, readers: tuple[int, ...], kinds: list[int]
    ) -> None:
        self.owner, self.model, self.tables = owner, owner.model, tables
        self.source, self.readers, self.kinds = source, readers, kinds
        self.sources = owner.place[source]
        self.targets = list(dict.fromkeys(device for reader in readers for device in owner.place[reader]))

    def add(self) -> None:
        """Add the ticks of the tensors to the loads: by who sends and receives, if that is all that they depend on."""
        tables = self.tables
        sent, received = ({device: set[int]() for device in row} for row in (self.sources, self.targets))
        for a, b in self._pairs():
            paid = [sum(int(table[kind, a, b]) for kind in self.kinds) for table in (tables.sent, tables.received)]
            if max(paid) < FAR:
                sent[a].add(paid[0])
                received[b].add(paid[1])
        if len(tables.link) or any(len(each) > 1 for each in (*sent.values(), *received.values())):
            self._add_pairs()
            return
        for prices, literal in ((received, self._arrives), (sent, self._leaves)):
            for device, each in prices.items():
                if ticks := max(each, default=0):
                    self._pay(device, literal(device), ticks)

    def _pay(self, device: int, literal: Literal, ticks: int) -> None:
        self.owner.busy[self.tables.load_of[device]].append((literal, ticks))

    def _pairs(self) -> list[tuple[int, int]]:
        return [(a, b) for a in self.sources for b in self.targets if a != b]

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

    def _add_pairs(self) -> None:
        travels = self._travels()
        for kind in self.kinds:
            for (a, b), literal in travels.items():
                if 0 < (ticks := int(self.tables.received[kind, a, b])) < FAR:
                    self._pay(b, literal, ticks)
                for number, ticks in self.tables.on_links(kind, a, b):
                    if 0 < ticks < FAR:
                        self.owner.busy[number].append((literal, ticks))
            for a in self.sources:
                self._pay_once(a, {b: travels[a, b] for b in self.targets if a != b}, kind)

    def _travels(self) -> dict[tuple[int, int], cp_model.IntVar]:
        """Device pair → whether the source is on the one, and a reader on the other."""
        source, readers = self.source, self.readers
        single = len(readers) == 1

        def joins(a: int, b: int) -> cp_model.IntVar:
            return self.owner.new_bool(lambda where: where[source] == a and any(where[each] == b for each in readers))

        found = {(a, b): joins(a, b) for a in self.sources for b in self.targets if single or a != b}
        if single:
            reader = self.owner.place[readers[0]]
            for a, literal in self.sources.items():
                self.model.add(sum(found[a, b] for b in self.targets) == literal)
            for b in self.targets:
                self.model.add(sum(found[a, b] for a in self.sources) == reader[b])
            return {pair: found[pair] for pair in self._pairs()}
        for (a, _), literal in found.items():
            self.model.add_implication(literal, self.sources[a])
        for b in self.targets:
            self.model.add_bool_or(~self._arrives(b), *(found[pair] for pair in found if pair[1] == b))
        return found

    def _pay_once(self, a: int, travels: Mapping[int, cp_model.IntVar], kind: int) -> None:
        """The sender pays for its longest transfer of a tensor."""
        paid = {b: ticks for b in travels if (ticks := int(self.tables.sent[kind, a, b])) < FAR}
        if not any(paid.values()):
            return
        source, readers = self.source, self.readers
        longest = self.model.new_int_var(0, max(paid.values()), "")

        def value(where: Place) -> int:
            return max((paid.get(where[r], 0) for r in readers if where[source] == a), default=0)

        self.owner.values.append((longest, value))
        for b, ticks in paid.items():
            self.model.add(longest >= ticks * travels[b])
        self._pay(a, longest, 1)


def leave_working_room(model: cp_model.CpModel, problem: Problem, place: Sequence[Mapping[int, Literal]]) -> None:
    """While an op of some time runs, its device holds its block and all others there, its inputs, output and workspace.

    An input counts as the original where its producer lies on the device, and as the copies sent where it does not.

    Parameters
    ----------
    place
        [op] → device → literal.
    """
    if problem.op_count * problem.device_count > _MOST_WORKING:
        return
    held = {}
    rows = list(enumerate(place[: problem.op_count]))
    for device, capacity in enumerate(problem.capacity_bytes):
        if capacity is not None:
            held[device] = model.new_int_var(0, capacity, "")
            here = [(problem.footprint_bytes[op], row[device]) for op, row in rows if device in row]
            model.add(held[device] == sum(size * there for size, there in here))
    for op, row in rows:
        ask_time()
        inputs = input_bytes(problem, op)
        for device, literal in row.items():
            capacity = problem.capacity_bytes[device]
            if capacity is None or not problem.duration[op][device]:
                continue
            sent = sum(copies for _, copies in inputs.values())
            working = problem.output_bytes[op] + problem.workspace_bytes[op] + sent
            together: list[cp_model.LinearExpr] = []
            for source, (original, copies) in inputs.items():
                if device in place[source] and original != copies:
                    both = model.new_bool_var("")
                    model.add_bool_or([both, ~literal, ~place[source][device]])
                    model.add_implication(both, literal)
                    model.add_implication(both, place[source][device])
                    together.append((original - copies) * both)
            if working:
                model.add(cp_model.LinearExpr.sum([held[device], working * literal, *together]) <= capacity)


def find_placement(problem: Problem, seconds: float, without: Container[str] = ()) -> tuple[bool, list[int] | None]:
    """Return whether the question was decided in time, and [op] → device of a placement that breaks no family, if any.

    Where time is up it is undecided; `OutOfTimeError` is not raised, as a proof that is explained is not to be lost.

    Parameters
    ----------
    without
        Families to ignore, or `WORKING`.
    """
    until = now() + seconds
    instance = _instance_without(problem, without)
    try:
        with ends_when(lambda: now() > until):
            model = AssignmentModel(problem, instance, without=without)
    except OutOfTimeError:
        return False, None
    left_s = max(0.0, until - now())
    solver = new_solver(1, 0, left_s, relaxes_well=True)
    status = solve_in_thread(solver, model.model, left_s, time_is_up)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return status == cp_model.INFEASIBLE, None
    place = model.read(solver.boolean_value)
    return True, [place[block] for block in instance.block[: problem.op_count]]


def _instance_without(problem: Problem, without: Container[str]) -> Instance:
    """The problem's instance, where groups may be torn apart or every device is allowed if these rules are left out."""
    instance = build_instance(problem)
    if "colocation" in without:
        more = instance.op_count - problem.op_count
        instance = replace(
            instance,
            block=tuple(range(instance.op_count)),
            members=tuple((op,) for op in range(instance.op_count)),
            footprint=(*problem.footprint_bytes, *(0,) * more),
            allowed=(*problem.allowed, *instance.allowed[problem.op_count :]),
        )
    if "pins" in without:
        instance = replace(instance, allowed=(tuple(range(problem.device_count)),) * instance.op_count)
    return instance
