"""Local search on whole schedules with link contention: annealing in machine code, one chain per worker."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

import numpy as np

from dlplacer.solvers.decode.arrays import Tables, build_tables
from dlplacer.solvers.decode.machine_code import machine_code
from dlplacer.solvers.decode.runs import run_from, take_over
from dlplacer.solvers.decode.solution import (
    NEVER,
    TRIAL_START,
    Solution,
    filled,
    transfers,
    width_of,
)
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, sequence, with_transfers
from dlplacer.solvers.instance.time_limit import count_work, now
from dlplacer.solvers.local_search.moves import anneal


def move_units(instance: Instance) -> list[tuple[int, ...]]:
    """Blocks, joined with ops of no time that read or are read by one op only, as far as some device may run all.

    On captured graphs most ops take no time (views, parameters, getters): left behind, they would send what their
    neighbour reads, so moves of single ops would hardly ever pay.
    """
    from networkx.utils import UnionFind

    joined = UnionFind(range(len(instance.members)))
    allowed = {block: set(instance.allowed[ops[0]]) for block, ops in enumerate(instance.members)}
    for op in instance.order:
        if instance.longest[op] or op == instance.barrier:
            continue
        before, after = instance.predecessors[op], instance.successors[op]
        neighbour = before[0][0] if len(before) == 1 else after[0][0] if len(after) == 1 else -1
        if neighbour < 0 or neighbour == instance.barrier:
            continue
        own, other = joined[instance.block[op]], joined[instance.block[neighbour]]
        both = allowed[own] & allowed[other]
        if own != other and both:
            joined.union(own, other)
            allowed[joined[own]] = both
    units = [tuple(sorted(op for block in blocks for op in instance.members[block])) for blocks in joined.to_sets()]
    return sorted(units)


class Chain:
    """One annealed solution and the best one that it came by.

    Attributes
    ----------
    makespan
        Of the best solution, in ticks as kernels count.
    """

    def __init__(self, tables: Tables, schedule: Schedule) -> None:
        """Begin with a schedule, run anew."""
        ops = sequence(tables.instance, schedule.device, schedule.start)
        self._tables, self._width = tables, 0
        self._device = np.array(schedule.device, np.int64)
        self._sequence = np.array([op for op in ops if op not in tables.instance.sources], np.int64)
        self._kept = self._device.copy(), self._sequence.copy()
        self.makespan = self._run()

    def go_on_from(self, other: "Chain") -> None:
        """Take the best solution of another chain, or of this one, as the present one."""
        self._device, self._sequence = other._device.copy(), other._sequence.copy()
        self.makespan = self._run()

    def keep(self, admitted: bool) -> None:
        """Hear whether the best solution was a plan; if not, go back to the last one that was."""
        if admitted:
            self._kept = self._device.copy(), self._sequence.copy()
        else:
            self._device, self._sequence = (values.copy() for values in self._kept)
            self.makespan = self._run()

    def go_on(self, trials: int, temperature: float, seed: int) -> bool:
        """Try so many moves; whether something better was found."""
        before = self.makespan
        found, tried, _ = machine_code(anneal)(
            self._tables.arrays, self._solution, self._device, self._sequence, before, trials, temperature, seed
        )
        self.makespan = found
        if tried < 0:
            self._width = 2 * width_of(self._solution)
            self._run()
        return found < before

    def schedule(self) -> Schedule:
        """The best solution as a schedule in exact ticks: kernels take the ticks of a route from a line."""
        instance = self._tables.instance
        solution, _ = self._filled()
        assert instance.traffic is not None
        start, devices = solution.ops[:, TRIAL_START].tolist(), self._device.tolist()
        return with_transfers(instance, instance.traffic, devices, start, list(transfers(self._tables, solution)))

    def _run(self) -> int:
        """Run the best solution as the present one; its makespan."""
        self._solution, makespan = self._filled()
        machine_code(take_over)(self._tables.arrays, self._solution, 0, makespan)
        return makespan

    def _filled(self) -> tuple[Solution, int]:
        def run_all(solution: Solution) -> int:
            return machine_code(run_from)(self._tables.arrays, solution, 0, NEVER)

        return filled(self._tables, self._device, self._sequence, run_all, self._width)


@dataclass(frozen=True)
class LocalSearchParams:
    """The cooling of the search.

    Attributes
    ----------
    warm, cool
        First and last temperature of a cycle, in mean times of working ops.
    chunk_s, least_chunk_s
        Seconds between looks at the clock and at what was found; these become fewer, down to the least, while that is
        refused for its memory over time, which the compiled code does not know.
    chunk_share, most_growth
        A chunk at most, of the time that is left, and in moves of the last one: a trial may be given up at once, or run
        the whole sequence.
    cycles, patience
        Times that the search is warmed up again, from the best schedule of all chains, and how many in a row may bring
        nothing.
    """

    warm: float = 0.15
    cool: float = 0.005
    chunk_s: float = 0.25
    least_chunk_s: float = 0.02
    chunk_share: float = 0.125
    most_growth: int = 8
    cycles: int = 4
    patience: int = 2


PARAMS = LocalSearchParams()

_TRIAL_S = 6e-6
"""Seconds of work for a trial of the compiled code: 170,000 of them take a second."""


def anneal_schedule(instance: Instance, incumbent: Incumbent, seconds: float) -> None:
    """Offer better schedules until the gap is closed, the time is up or a cycle brings nothing.

    Nothing where links are not contended.

    Parameters
    ----------
    instance
        The incumbent's, or a surrogate of it with the same traffic.
    """
    best, budget, traffic = incumbent.best, incumbent.budget, instance.traffic
    if best is None or traffic is None or not traffic.routes.resource_count or incumbent.closed:
        return
    tables = build_tables(instance, move_units(instance))
    random, seconds = Random(budget.seed), min(seconds, budget.left_s)
    stop_at = now() + seconds
    chains = [Chain(tables, best) for _ in range(budget.workers)]
    # Loading or compiling the code is no part of a cycle, else the first seems to bring nothing.
    chains[0].go_on(0, 0.0, 0)
    began = now()
    cycle_s = (stop_at - began) / PARAMS.cycles
    op_ticks = sum(instance.mean_duration) / max(1, instance.working_count)
    trials, cycle, known, chunk_s, fruitless = 1, 0, best.makespan, PARAMS.chunk_s, 0
    # Threads suffice: compiled code releases the interpreter's lock.
    with ThreadPoolExecutor(budget.workers) as pool:
        while incumbent.best is not None and cycle_s > 0 and budget.left_s and not incumbent.closed:
            passed, done = divmod((now() - began) / cycle_s, 1)
            if passed >= PARAMS.cycles:
                return
            if passed > cycle:
                fruitless = fruitless + 1 if known <= incumbent.best.makespan else 0
                if fruitless == PARAMS.patience:
                    return
                cycle, known = int(passed), incumbent.best.makespan
                _restart(chains)
            temperature = op_ticks * PARAMS.warm * (PARAMS.cool / PARAMS.warm) ** done
            chunk_began = now()
            tasks = [pool.submit(chain.go_on, trials, temperature, random.randrange(2**31)) for chain in chains]
            better = [task.result() for task in tasks]
            count_work(_TRIAL_S * trials)
            pace = (now() - chunk_began) / trials
            for chain, found in zip(chains, better, strict=True):
                if found and chain.makespan < incumbent.best.makespan:
                    offered = chain.schedule()
                    kept = incumbent.offer(offered)
                    chain.keep(kept)
                    if kept:
                        chunk_s = min(PARAMS.chunk_s, 1.5 * chunk_s)
                    elif offered.makespan < incumbent.best.makespan:
                        chunk_s = max(PARAMS.least_chunk_s, chunk_s / 2)
            left_s = min(stop_at - now(), budget.left_s)
            foreseen = int(min(chunk_s, max(PARAMS.chunk_share * left_s, PARAMS.least_chunk_s)) / pace)
            trials = max(1, min(PARAMS.most_growth * trials, foreseen))


def _restart(chains: Sequence[Chain]) -> None:
    """All chains go on from the best solution of any."""
    best = min(chains, key=lambda chain: chain.makespan)
    for chain in chains:
        chain.go_on_from(best)
