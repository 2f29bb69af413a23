"""Local search on whole schedules with link contention: annealing in machine code, one chain per worker."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.local_search.arrays import build_work
from dlplacer.solvers.local_search.chain import Chain


@dataclass(frozen=True)
class LocalSearchParams:
    """How the search cools down.

    Attributes
    ----------
    warm, cool
        First and last temperature of a cycle, as shares of the makespan.
    chunk_s
        Seconds between looks at the clock.
    first_trials
        Moves before the first of them.
    cycles
        Times that the search is warmed up again, from the best schedule of all chains.
    """

    warm: float = 3e-4
    cool: float = 1e-5
    chunk_s: float = 0.5
    first_trials: int = 500
    cycles: int = 4


PARAMS = LocalSearchParams()


def anneal_schedule(instance: Instance, incumbent: Incumbent, seconds: float) -> None:
    """Offer better schedules until the gap is closed or the time is up; nothing where links are not contended.

    Parameters
    ----------
    instance
        The incumbent's, or a surrogate of it with the same traffic.
    """
    best, budget = incumbent.best, incumbent.budget
    built = build_work(instance)
    if best is None or built is None or incumbent.closed:
        return
    random, began = Random(budget.seed), time.monotonic()
    cycle_s = min(seconds, budget.left_s) / PARAMS.cycles
    chains = [Chain.of(instance, *built, best) for _ in range(budget.workers)]
    trials, cycle = PARAMS.first_trials, 0
    # Threads suffice: compiled code releases the interpreter's lock.
    with ThreadPoolExecutor(budget.workers) as pool:
        while budget.left_s and not incumbent.closed:
            passed, done = divmod((time.monotonic() - began) / cycle_s, 1)
            if passed >= PARAMS.cycles:
                return
            if passed > cycle:
                cycle = int(passed)
                _restart(chains)
            temperature = best.makespan * PARAMS.warm * (PARAMS.cool / PARAMS.warm) ** done
            chunk_began = time.monotonic()
            tasks = [pool.submit(chain.go_on, trials, temperature, random.randrange(2**31)) for chain in chains]
            for chain, task in zip(chains, tasks, strict=True):
                if task.result() and incumbent.best is not None and chain.makespan < incumbent.best.makespan:
                    chain.keep(incumbent.offer(chain.schedule()))
            pace = (time.monotonic() - chunk_began) / trials
            trials = max(1, int(min(PARAMS.chunk_s, budget.left_s) / pace))


def _restart(chains: Sequence[Chain]) -> None:
    """All chains go on from the best solution of any."""
    best = min(chains, key=lambda chain: chain.makespan)
    for chain in chains:
        chain.go_on_from(best)
