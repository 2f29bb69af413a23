"""Models of the placement alone: to decide feasibility without regard to time, and to minimise the largest load.

Every placement can be scheduled by running its ops one after another. So without memory over time a problem is
infeasible exactly if no placement exists. One literal per device pair of an arc makes the linear relaxation that of
paths through (op, device), which is tight. The relaxation of the model with start times is not, because of its clauses.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from itertools import product

from ortools.sat.python import cp_model

from dlplacer.problem.live_memory import input_bytes
from dlplacer.problem.problem import Problem
from dlplacer.solvers.ilp import constraints
from dlplacer.solvers.ilp.constraints import Literal, Variables
from dlplacer.solvers.ilp.cp_sat_search import new_solver, solve_in_thread
from dlplacer.solvers.instance.instance import FAR, Instance, build_instance
from dlplacer.solvers.instance.placement_loads import PlacementLoads
from dlplacer.solvers.instance.time_limit import OutOfTimeError, ask_time, ends_when, now, time_is_up

_MOST_WORKING = 20_000
"""Ops × devices up to which working sets are modelled, with a row each."""

WORKING = "working"
"""A part of the family ``memory`` under ``memory: live``: an op's inputs, output and workspace while the op runs."""

FAMILIES = ("memory", "pins", "colocation", "routes")
"""Rules that can forbid a placement: eq. 13, allowed devices, groups, and eq. 8 (devices that no route joins)."""

Place = Sequence[int]
"""[block] → device."""

_Travels = dict[tuple[int, int], cp_model.IntVar]


class AssignmentModel:
    """A model of an instance's placements that minimises the largest of its loads, between `least` and `most`.

    `without` names families to ignore, or `WORKING`.
    """

    def __init__(
        self,
        problem: Problem,
        instance: Instance,
        loads: PlacementLoads | None = None,
        least: int = 0,
        most: int = 0,
        without: Container[str] = (),
    ) -> None:
        self.instance, self.model = instance, cp_model.CpModel()
        self.largest = self.model.new_int_var(least, most, "largest")
        variables = Variables(constraints.place_blocks(self.model, instance), (), self.largest)
        self.place = variables.place
        # Auxiliary variables, and their values as functions of a placement.
        self.values: list[tuple[cp_model.IntVar, Callable[[Place], int]]] = []
        constraints.place_every_op(self.model, instance, variables)
        if "routes" not in without:
            constraints.join_communicating_ops(self.model, instance, variables)
        if "memory" not in without:
            constraints.fit_into_memory(self.model, instance, variables)
            if WORKING not in without and problem.options.memory == "live":
                leave_working_room(self.model, problem, [self.place[block] for block in instance.block])
        if loads is not None:
            self._add_loads(loads)

    def _add_loads(self, loads: PlacementLoads) -> None:
        busy: list[list[tuple[Literal, int]]] = [[] for _ in range(loads.number)]
        for work, literals in zip(loads.work.tolist(), self.place, strict=True):
            for device, literal in literals.items():
                busy[loads.load_of[device]].append((literal, work[device]))
        sent: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for source, readers, kind in loads.requests:
            sent.setdefault((source, readers), []).append(kind)
        for (source, readers), kinds in sent.items():
            ask_time()
            travels = self._travels(source, readers)
            for kind, ((a, b), literal) in product(kinds, travels.items()):
                paid = [(loads.load_of[b], int(loads.received[kind, a, b])), *loads.on_links[kind, a, b]]
                for number, ticks in paid:
                    busy[number].append((literal, ticks if ticks < FAR else 0))
            for kind, a in product(kinds, self.place[source]):
                paid_to = {b: int(loads.sent[kind, a, b]) for there, b in travels if there == a}
                busy[loads.load_of[a]] += self._paid_once(source, readers, a, paid_to, travels)
        for terms in busy:
            weighted = [literal for literal, _ in terms], [weight for _, weight in terms]
            self.model.add(cp_model.LinearExpr.weighted_sum(*weighted) <= self.largest)
        self.model.minimize(self.largest)

    def _travels(self, source: int, readers: tuple[int, ...]) -> _Travels:
        """Device pair → literal that is true if the source is on the first device and a reader on the second."""
        sources, single = self.place[source], len(readers) == 1
        targets = list(dict.fromkeys(device for reader in readers for device in self.place[reader]))

        def joins(a: int, b: int) -> cp_model.IntVar:
            literal = self.model.new_bool_var("")
            self.values.append((literal, lambda where: where[source] == a and b in [where[each] for each in readers]))
            return literal

        found = {(a, b): joins(a, b) for a in sources for b in targets if single or a != b}
        if single:
            for a, literal in sources.items():
                self.model.add(sum(found[a, b] for b in targets) == literal)
            for b, literal in self.place[readers[0]].items():
                self.model.add(sum(found[a, b] for a in sources) == literal)
            return {(a, b): literal for (a, b), literal in found.items() if a != b}
        for (a, b), literal in found.items():
            self.model.add_implication(literal, sources[a])
            for reader in readers:
                if b in self.place[reader]:
                    self.model.add_bool_or(~sources[a], ~self.place[reader][b], literal)
        return found

    def _paid_once(
        self, source: int, readers: tuple[int, ...], a: int, ticks: Mapping[int, int], travels: _Travels
    ) -> list[tuple[Literal, int]]:
        """The terms of a sender's load for a tensor: its longest transfer, if it takes time."""
        paid = {b: each for b, each in ticks.items() if 0 < each < FAR}
        if not paid:
            return []
        longest = self.model.new_int_var(0, max(paid.values()), "")

        def value(where: Place) -> int:
            return max((paid.get(where[r], 0) for r in readers if where[source] == a), default=0)

        self.values.append((longest, value))
        for b, each in paid.items():
            self.model.add(longest >= each * travels[a, b])
        return [(longest, 1)]

    def hint(self, place: Place, largest: int) -> None:
        """Start from a placement, with hints for every variable because CP-SAT completes few hints itself."""
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


def leave_working_room(model: cp_model.CpModel, problem: Problem, place: Sequence[Mapping[int, Literal]]) -> None:
    """While an op of positive time runs, its device holds resident blocks and the op's inputs, output and workspace.

    An input counts as the original if it is produced there, else as its copies. `place` is [op] → device → literal.
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
    """Return whether the search decided in time, and [op] → device of a placement that satisfies every family, if any.

    `without` names families to ignore, or `WORKING`. If an enclosing time limit ends, the search is undecided.
    """
    until, instance = now() + seconds, _instance_without(problem, without)
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
    """The problem's instance without groups, or with every device allowed, if these rules are omitted."""
    instance = build_instance(problem)
    if "colocation" in without:
        every = range(instance.op_count)
        instance = replace(
            instance,
            block=tuple(every),
            members=tuple((op,) for op in every),
            footprint=(*problem.footprint_bytes, *(0 for _ in every[problem.op_count :])),
            allowed=(*problem.allowed, *instance.allowed[problem.op_count :]),
        )
    if "pins" in without:
        instance = replace(instance, allowed=(tuple(range(problem.device_count)),) * instance.op_count)
    return instance
