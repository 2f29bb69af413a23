"""Local search on whole schedules with link contention: annealing in machine code, one chain per worker."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

from dlplacer.solvers.decode.arrays import build_tables
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import count_work, now
from dlplacer.solvers.local_search.chain import Chain
from dlplacer.solvers.local_search.units import move_units


@dataclass(frozen=True)
class LocalSearchParams:
    """The cooling of the search.

    Attributes
    ----------
    warm, cool
        First and last temperature of a cycle, as shares of the makespan.
    chunk_s, least_chunk_s
        Seconds between looks at the clock and at what was found; these become fewer, down to the least, while that is
        refused for its memory over time, which the compiled code does not know.
    chunk_share
        Of the time that is left, a chunk at most: trials that are given up soon tell little of the next ones, which
        took 2.6 s of 4,500 ops' last 3 where the pace so far foretold 0.5.
    most_growth
        So many times as many moves at most from one look at the clock to the next, from one on: a trial may be given up
        at once, or run the whole sequence, which takes a tenth of a second on large graphs.
    cycles, patience
        Times that the search is warmed up again, from the best schedule of all chains, and how many in a row may bring
        nothing: with one Inception's training step on eight GPUs ended 0.06, 0.15 and 0.29 % above its bound after a
        minute, with two 0.06 three times and 0.14; the seeds were not all the same.
    """

    warm: float = 3e-4
    cool: float = 1e-5
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
            temperature = best.makespan * PARAMS.warm * (PARAMS.cool / PARAMS.warm) ** done
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
