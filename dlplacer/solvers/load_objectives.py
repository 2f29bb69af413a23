"""Objective throughput: the placement whose largest load is least, with a bound that CP-SAT proves in integers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ortools.sat.python import cp_model

from dlplacer.core.errors import InternalError
from dlplacer.problem.live_memory import memory_use
from dlplacer.problem.loads import APART, Loads
from dlplacer.problem.problem import Problem
from dlplacer.problem.simulate import replay
from dlplacer.solvers.bounds import whole_area
from dlplacer.solvers.feasibility import explain_infeasible
from dlplacer.solvers.heuristics.list_rules import construct, list_schedule
from dlplacer.solvers.ilp import constraints
from dlplacer.solvers.ilp.constraints import Literal, Variables
from dlplacer.solvers.ilp.cp_sat_search import new_solver
from dlplacer.solvers.ilp.solver_thread import solve_in_thread
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.memory_admission import is_memory_short, keeping_surrogates, surrogates, tightened
from dlplacer.solvers.instance.schedule import Budget, Outcome, ProblemSchedule
from dlplacer.solvers.instance.time_limit import ask_time, now, within
from dlplacer.solvers.local_search.contiguous_loads import block_orders, contiguous_loads, load_tables
from dlplacer.solvers.local_search.placement_annealing import PlacementAnnealing

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
        self.period = self.model.new_int_var(least, most, "period")
        variables = Variables(constraints.place_blocks(self.model, instance), (), self.period)
        self.place = variables.place
        self.values: list[tuple[cp_model.IntVar, Callable[[Place], int]]] = []
        self.busy: list[list[tuple[Literal, int]]] = [[] for _ in range(instance.device_count + loads.link_count)]
        constraints.place_every_op(self.model, instance, variables)
        constraints.join_communicating_ops(self.model, instance, variables)
        constraints.fit_into_memory(self.model, instance, variables)
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


@dataclass(frozen=True)
class ThroughputParams:
    """Shares of the time, and how often a surrogate is tightened; guesses.

    Attributes
    ----------
    anneal_share, anneal_block_s, anneal_rounds
        Of the time, for annealing, at most so many seconds for a block; each round goes on from the best placement.
    temperatures
        The first and the last of a round, as shares of the period.
    whole_share, surrogate_share
        Of the time left, for the problem itself if memory may be short, as it alone gives a bound; and for each
        surrogate.
    rounds
        Times that a surrogate is tightened.
    """

    anneal_share: float = 0.6
    anneal_block_s: float = 0.05
    anneal_rounds: int = 4
    temperatures: tuple[float, float] = (0.02, 0.0002)
    whole_share: float = 0.6
    surrogate_share: float = 0.3
    rounds: int = 6


PARAMS = ThroughputParams()


def solve_throughput(problem: Problem, budget: Budget) -> Outcome:
    """The schedule of least period found within the budget, and a period in ticks that no plan can beat.

    Raises
    ------
    InfeasibleError
        If no placement exists.
    """
    search = _Search(problem, budget)
    within(lambda: search.best is not None and not budget.left_s, search.run)
    best = search.best
    return Outcome(None if best is None else best[1], search.bound)


class _Search:
    """The best schedule with its period, and the best bound so far, in ticks."""

    def __init__(self, problem: Problem, budget: Budget) -> None:
        self.problem, self.budget, self.loads = problem, budget, Loads(problem)
        self.instance = build_instance(problem)
        self.bound = whole_area(self.instance)
        self.best: tuple[int, ProblemSchedule] | None = None

    def run(self) -> None:
        """Begin with a list schedule, then search on the instance, and on tighter ones if memory is short."""
        first = construct(self.instance, list_schedule)
        if first is not None:
            self.offer(first.device)
        self._anneal()
        is_short = is_memory_short(self.problem, self.instance) and self.problem.options.memory == "live"
        self._improve(self.instance, PARAMS.whole_share if is_short else 1.0, is_whole=True)
        for surrogate in self._surrogates() if is_short else ():
            if not self.closed and self.budget.left_s:
                self._up_to_a_plan(surrogate)

    def _anneal(self) -> None:
        """Offer contiguous runs, then what annealing makes of the best placement."""
        instance = self.instance
        tables = load_tables(self.problem, instance, self.loads)
        search = PlacementAnnealing(tables, instance.capacity)
        for units in block_orders(self.problem, instance, tables):
            if (place := contiguous_loads(instance, tables, units)) is not None:
                self.offer([place[block] for block in instance.block])
        place = None
        if self.best is not None:
            device = self.best[1].device
            place = [device[ops[0]] if ops[0] < len(device) else 0 for ops in instance.members]
        if place is None or self.closed:
            return
        whole_s = min(PARAMS.anneal_share * self.budget.left_s, PARAMS.anneal_block_s * len(instance.members))
        seconds = whole_s / PARAMS.anneal_rounds
        for turn in range(PARAMS.anneal_rounds):
            search.begin(place)
            seed = 1000 * (self.budget.seed + turn)
            search.cool(PARAMS.temperatures, seconds, seed, lambda: not self.budget.left_s)
            if search.least >= 0:
                place = search.best.tolist()
                self.offer([place[block] for block in instance.block])

    def offer(self, device: Sequence[int]) -> list[int]:
        """Keep a placement if it is a plan of shorter period; [device] → bytes by which it exceeds the memory."""
        period = max(self.loads.of(device[: self.problem.op_count]))
        if period >= (APART if self.best is None else self.best[0]):
            return [0] * self.instance.device_count
        schedule = self._scheduled(device)
        used = memory_use(self.problem, *replay(self.problem, schedule.device, schedule.order)).values()
        rooms = [(use.peak_bytes, use.capacity_bytes) for use in used]
        excess = [0 if room is None else max(0, size - room) for size, room in rooms]
        if not any(excess):
            self.best = period, schedule
            self._report()
        return excess

    @property
    def closed(self) -> bool:
        """True if the gap that the user asked for is reached."""
        return self.best is not None and self.best[0] - self.bound <= self.budget.gap * self.best[0]

    def _surrogates(self) -> Iterator[Instance]:
        yield from keeping_surrogates(self.problem)
        yield from surrogates(self.problem)

    def _up_to_a_plan(self, surrogate: Instance) -> None:
        for _ in range(PARAMS.rounds):
            place = self._improve(surrogate, PARAMS.surrogate_share, is_whole=False)
            excess = [] if place is None else self.offer([place[block] for block in surrogate.block])
            if place is None or not any(excess):
                return
            surrogate = tightened(surrogate, place, excess)

    def _scheduled(self, device: Sequence[int]) -> ProblemSchedule:
        """A list schedule of a placement: the order decides the makespan, and memory over time."""
        instance, count = self.instance, self.problem.op_count
        found = construct(instance, list_schedule, [device[ops[0]] for ops in instance.members])
        if found is None:
            raise InternalError("a placement within memory has no list schedule; please report this graph and topology")
        return ProblemSchedule(self.problem, found.device[:count], found.start[:count])

    def _improve(self, instance: Instance, share: float, is_whole: bool) -> list[int] | None:
        """The placement by block that CP-SAT finds in a share of the time; None if it finds none."""
        seconds = share * self.budget.left_s
        stop_at = now() + seconds
        most = self.problem.horizon if self.best is None else self.best[0]
        owner = AssignmentModel(self.problem, instance, self.loads, self.bound, max(most, self.bound))
        if self.best is not None:
            device = self.best[1].device
            owner.hint([device[ops[0]] if ops[0] < len(device) else 0 for ops in instance.members], most)
        solver = new_solver(self.budget.workers, self.budget.seed, max(0.0, stop_at - now()), relaxes_well=True)
        solver.parameters.relative_gap_limit = self.budget.gap
        listener = _Listener(owner)
        if is_whole:
            solver.best_bound_callback = listener.on_bound

        def look() -> bool:
            if not is_whole:
                return self.budget.stop.is_set()
            self.bound = max(self.bound, listener.bound)
            if listener.fresh:
                place, listener.fresh = listener.place, False
                self.offer([place[block] for block in instance.block])
            self._report()
            return self.budget.stop.is_set() or self.closed

        status = solve_in_thread(solver, owner.model, max(0.0, stop_at - now()), look, listener)
        if status == cp_model.INFEASIBLE and is_whole and self.best is None:
            raise explain_infeasible(self.problem)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) and is_whole:
            listener.on_bound(solver.best_objective_bound)
        if is_whole:
            look()
        return listener.place or None

    def _report(self) -> None:
        period = None if self.best is None else self.best[0]
        if period is not None and period < self.bound:
            raise InternalError(
                f"the bound of {self.bound} ticks is above a period of {period} ticks; please report this graph and "
                "topology"
            )
        self.budget.report(period, self.bound)


class _Listener(cp_model.CpSolverSolutionCallback):
    """The last placement and the best bound that the solver's threads report."""

    def __init__(self, owner: AssignmentModel) -> None:
        super().__init__()
        self.owner, self.place, self.fresh, self.bound = owner, list[int](), False, 0

    def on_solution_callback(self) -> None:
        self.place, self.fresh = self.owner.read(self.boolean_value), True

    def on_bound(self, bound: float) -> None:
        # CP-SAT hands out its integer bounds as floats.
        self.bound = max(self.bound, math.ceil(bound - 1e-3) if math.isfinite(bound) else 0)
