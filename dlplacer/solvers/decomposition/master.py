"""Placing the blocks that series share: a master problem over patterns, of which only those that matter are solved.

Solved independently, two series may place a shared block, mostly that of a cut op between them, on different devices.
Let f_s(σ) be the least makespan of series s when its shared blocks are placed as σ says. Whatever the schedule, its
placement fixes one σ for all, so the chain takes no less than min over σ of Σ_s f_s(σ). A master problem chooses σ with
a lower bound in place of every f_s that is not known yet; what it chooses is solved, and it chooses again.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

from ortools.sat.python import cp_model

from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.decomposition.segments import Series
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.ilp.cp_sat_search import new_solver
from dlplacer.solvers.ilp.solver_thread import solved_in_thread
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.symmetry import interchangeable, relabelled

Pattern = tuple[int, ...]
"""Device of each shared block of a series, relabelled in order of appearance where devices can be swapped."""

Solve = Callable[[SegmentChain, Series, float, int], None]
"""Improves the best schedule of a series' instance and proves it, or that none takes at most so many ticks; with some
deterministic seconds of work."""


@dataclass(frozen=True)
class MasterParams:
    """What is spent on the master and on its subproblems.

    Attributes
    ----------
    master_s
        Seconds per solve of the master: small beside the limits that are usual. A guess.
    work, growth
        Deterministic seconds of the first search of a subproblem, and the factor for every further one, which begins
        anew: Inception, colocated, on two GPUs is proven in 20 to 23 s with a factor of 8, in 21 to 31 with 3.
    survey_share
        Share of the time in which bounds and list schedules of all patterns are made ahead. A guess.
    survey_placements
        Up to so many placements of a series' shared blocks all patterns are surveyed; 64 = two blocks on eight devices.
    bound_s
        Seconds for the bounds of a subproblem; they repeat for every pattern.
    most_shared
        Shared blocks per series that a pattern fixes; the others, those that fewest series share, are left free, which
        only weakens the bound. Two devices then have at most 2^9 patterns.
    guess_scale
        Units in which the master breaks ties by the known schedules, per sum of all bounds; the sum of all guesses
        stays far below 2^53, and below one unit of the bound.
    retry_penalty
        Units, times the square of the tries, by which a subproblem that was searched in vain loses against others: 5 ‰
        of the makespan at first. A guess.
    """

    master_s: float = 5.0
    work: float = 0.2
    growth: float = 8.0
    survey_share: float = 0.3
    survey_placements: int = 64
    bound_s: float = 0.2
    most_shared: int = 10
    guess_scale: int = 10**6
    retry_penalty: int = 5 * 10**3


class MasterProblem:
    """The series of a chain, the blocks that they share, and what is known of each under each pattern."""

    def __init__(self, chain: SegmentChain, params: MasterParams = MasterParams()) -> None:
        self.chain, self.params = chain, params
        self.blocks = [self._own_blocks(series) for series in chain.series]
        users = Counter(block for own in self.blocks for block in own)
        most_used = sorted((block for block in users if users[block] > 1), key=lambda block: (-users[block], block))
        self.shared = [tuple(block for block in most_used if block in own)[: params.most_shared] for own in self.blocks]
        self.classes = interchangeable(chain.instance)
        self.free = [chain.incumbents[series.instance].bound for series in chain.series]
        self.known: list[dict[Pattern, Incumbent]] = [{} for _ in chain.series]
        self.work: dict[Instance, float] = {}
        self.tries = Counter[int]()
        for number, series in enumerate(chain.series):
            incumbent = chain.incumbents[series.instance]
            if incumbent.closed and incumbent.best is not None:
                placed = self._local(number, incumbent.best)
                self.known[number][self.pattern(number, placed)] = incumbent

    def reach(self, solve: Solve, offer: Callable[[int, Iterable[Schedule]], int | None], stop_at: float) -> None:
        """Choose and solve until the chain's optimum is known, all is closed, or a moment of `time.monotonic` has come.

        Parameters
        ----------
        offer
            Takes a lower bound on the ticks of the chain and schedules of the whole; gives the most ticks of a chain
            that is better than all known ones, or None to stop.
        """
        self._survey(time.monotonic() + self.params.survey_share * (stop_at - time.monotonic()))
        while (left := min(stop_at - time.monotonic(), self.chain.budget.left_s)) > 0:
            choice = self._choose(min(self.params.master_s, left))
            if choice is None:
                return
            ticks, assigned = choice
            patterns = [self.pattern(number, assigned) for number in range(len(self.chain.series))]
            chosen = [self._seen(number, pattern) for number, pattern in enumerate(patterns)]
            most = offer(ticks, self._combined(assigned, patterns))
            known = [self.chain.incumbents[limited.instance] for limited in chosen]
            # Least work first: a subproblem that is hard must not starve the easy ones.
            unsolved = [number for number, incumbent in enumerate(known) if not incumbent.closed]
            if most is None or not unsolved:
                return
            number = min(unsolved, key=lambda number: self.work.get(chosen[number].instance, 0.0))
            slack = max(0, most - sum(incumbent.bound for incumbent in known))
            self._advance(chosen[number], solve, known[number].bound + slack, stop_at)

    def pattern(self, number: int, assigned: dict[int, int]) -> Pattern:
        """The pattern of a series under a placement of its shared blocks."""
        placed = [assigned[block] for block in self.shared[number]]
        if not self._all_equal:
            return tuple(placed)
        name = relabelled(placed, self.classes, range(len(placed)))
        return tuple(name[device] for device in placed)

    def _own_blocks(self, series: Series) -> dict[int, int]:
        """Block of the whole → block of the series' instance."""
        whole = self.chain.instance
        ops = (op for number in series.segments for op in self.chain.segments[number].ops)
        return {block: number for number, block in enumerate(dict.fromkeys(whole.block[op] for op in ops))}

    def _local(self, number: int, schedule: Schedule) -> dict[int, int]:
        """Block → its device in a schedule of a series."""
        members = self.chain.series[number].instance.members
        return {block: schedule.device[members[own][0]] for block, own in self.blocks[number].items()}

    def _survey(self, stop_at: float) -> None:
        """Bounds and list schedules of all patterns, where not too many: they show which ones are worth more work."""
        devices = range(self.chain.instance.device_count)
        for number, blocks in enumerate(self.shared):
            if len(devices) ** len(blocks) <= self.params.survey_placements:
                for placed in product(devices, repeat=len(blocks)):
                    if time.monotonic() > stop_at or not self.chain.budget.left_s:
                        return
                    assigned = dict(zip(blocks, placed, strict=True))
                    pattern = self.pattern(number, assigned)
                    if pattern not in self.known[number] and all(
                        assigned[block] in self._allowed(block) for block in blocks
                    ):
                        self._seen(number, pattern)

    def _seen(self, number: int, pattern: Pattern) -> Series:
        """A series with its shared blocks placed as a pattern says; what is known of it is kept."""
        series, chain = self.chain.series[number], self.chain
        limits: dict[int, tuple[int, ...]] = {
            self.blocks[number][block]: (device,) for block, device in zip(self.shared[number], pattern, strict=True)
        }
        limited = replace(series, instance=series.instance.limited(limits))
        if pattern not in self.known[number]:
            if limited.instance not in chain.incumbents:
                chain.bounds[limited.instance] = lower_bounds(limited.instance, self.params.bound_s)
                chain.incumbents[limited.instance] = chain.begin(limited.instance)
                chain.incumbents[limited.instance].raise_bound(self.free[number])
            self.known[number][pattern] = chain.incumbents[limited.instance]
        else:
            chain.incumbents[limited.instance] = self.known[number][pattern]
        return limited

    def _allowed(self, block: int) -> tuple[int, ...]:
        return self.chain.instance.allowed[self.chain.instance.members[block][0]]

    def _advance(self, limited: Series, solve: Solve, most: int, stop_at: float) -> None:
        """Spend some work on a series whose shared blocks are placed, more every time."""
        chain = self.chain
        left = min(stop_at - time.monotonic(), chain.budget.left_s)
        if left > 0:
            work = self.work.get(limited.instance, self.params.work)
            chain.incumbents[limited.instance].budget = chain.budget_of(left)
            solve(chain, limited, work, most)
            self.work[limited.instance] = work * self.params.growth
            self.tries[id(chain.incumbents[limited.instance])] += 1

    def _combined(self, assigned: dict[int, int], patterns: Sequence[Pattern]) -> Iterator[Schedule]:
        """Schedules of the whole from those of the series under the chosen patterns."""
        parts = []
        for number, pattern in enumerate(patterns):
            schedule = self.known[number][pattern].best
            if schedule is None:
                return iter(())
            there = self._local(number, schedule)
            name = {there[block]: assigned[block] for block in self.shared[number]}
            parts.append((schedule, self._completed(name)))
        return self.chain.combined(parts)

    def _completed(self, name: dict[int, int]) -> list[int]:
        """New names of all devices, each in its class."""
        names = list(range(self.chain.instance.device_count))
        for members in self.classes:
            given = {device: name[device] for device in members if device in name}
            rest = [device for device in members if device not in given.values()]
            for device in members:
                names[device] = given[device] if device in given else rest.pop(0)
        return names

    def _choose(self, seconds: float) -> tuple[int, dict[int, int]] | None:
        """The best placement of the shared blocks by what is known; of equals that whose known schedules are best.

        With it comes a number of ticks that no sum of the series' makespans is less than.
        """
        scale = self.params.guess_scale
        model = cp_model.CpModel()
        shared = dict.fromkeys(block for blocks in self.shared for block in blocks)
        place = {block: {d: model.new_bool_var("") for d in self._allowed(block)} for block in shared}
        for row in place.values():
            model.add_exactly_one(row.values())
        same = self._same(model, place)
        costs, guesses = [], []
        whole = max(1, sum(self.free))
        for number, blocks in enumerate(self.shared):
            highest = max((known.bound for known in self.known[number].values()), default=self.free[number])
            cost = model.new_int_var(self.free[number], max(highest, self.free[number]), "")
            guess = model.new_int_var(0, 2 * scale, "")
            for pattern, known in self.known[number].items():
                literals = self._matching(blocks, pattern, place, same)
                met = cp_model.LinearExpr.sum(literals)
                more = max(known.bound, self.free[number]) - self.free[number]
                if more:
                    model.add(cost >= self.free[number] + more * (1 - len(literals)) + more * met)
                if known.best is not None:
                    tried = 0 if known.closed else self.tries[id(known)]
                    worse = (
                        known.best.makespan - self.free[number]
                    ) * scale // whole + tried**2 * self.params.retry_penalty
                    worse = min(2 * scale, worse)
                    model.add(guess >= worse + (worse + 1) * (met - len(literals)))
            costs.append(cost)
            guesses.append(guess)
        model.minimize(2 * scale * (len(guesses) + 1) * sum(costs) + sum(guesses))
        solver = new_solver(1, self.chain.budget.seed, seconds)
        if not solved_in_thread(solver, model, self.chain.budget.stop.is_set):
            return None
        assigned = {
            block: next(device for device, there in row.items() if solver.boolean_value(there))
            for block, row in place.items()
        }
        return int(solver.best_objective_bound + 1e-3) // (2 * scale * (len(guesses) + 1)), assigned

    @property
    def _all_equal(self) -> bool:
        return any(len(members) == self.chain.instance.device_count for members in self.classes)

    def _same(
        self, model: cp_model.CpModel, place: dict[int, dict[int, cp_model.IntVar]]
    ) -> dict[tuple[int, int], cp_model.IntVar]:
        """Pairs of blocks of one series → whether they are on one device, where all devices can be swapped."""
        same: dict[tuple[int, int], cp_model.IntVar] = {}
        if not self._all_equal:
            return same
        for pair in dict.fromkeys(pair for blocks in self.shared for pair in combinations(blocks, 2)):
            same[pair] = together = model.new_bool_var("")
            first, second = place[pair[0]], place[pair[1]]
            for device in first.keys() & second.keys():
                model.add_bool_or([~first[device], ~second[device], together])
                model.add_bool_or([~first[device], second[device], ~together])
        return same

    def _matching(
        self,
        blocks: Sequence[int],
        pattern: Pattern,
        place: dict[int, dict[int, cp_model.IntVar]],
        same: dict[tuple[int, int], cp_model.IntVar],
    ) -> list[cp_model.LiteralT]:
        """Literals that are all true exactly where the blocks are placed as a pattern says."""
        if not self._all_equal:
            return [place[block][device] for block, device in zip(blocks, pattern, strict=True)]
        return [
            same[pair] if first == second else ~same[pair]
            for pair, (first, second) in zip(combinations(blocks, 2), combinations(pattern, 2), strict=True)
        ]
