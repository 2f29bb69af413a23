"""Small problems with traffic solved as a whole: transfers, routes and memory over time in one model."""

from dataclasses import replace

from dlplacer.core.errors import InternalError
from dlplacer.problem.problem import Problem
from dlplacer.problem.transfers import Traffic
from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.ilp.cp_sat_search import search
from dlplacer.solvers.ilp.ilp_model import build_exact_model
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import Instance

_MOST_OPTIONAL_TRANSFERS = 3000
"""Four for every request and pair of devices; above it the model takes seconds to build and nothing is proven. A guess
from a few instances, never tuned."""


def solve_exactly(problem: Problem, instance: Instance, bounds: Bounds, incumbent: Incumbent, seconds: float) -> bool:
    """Solve the whole of a small problem; False if that proves that no plan exists.

    Bounds and proofs count only if no route that a transfer may take is left out; else the best plan with the routes
    that are looked at is sought, and the bound stays.
    """
    traffic = instance.traffic
    if traffic is None or incumbent.closed or seconds <= 0:
        return True
    if 4 * len(traffic.requests) * instance.device_count * (instance.device_count - 1) > _MOST_OPTIONAL_TRANSFERS:
        return True
    timed = instance
    if problem.options.memory == "live":
        # Parameters take memory from when they are made, so their times matter too.
        timed = replace(instance, sources=frozenset(), sinks=frozenset())
    best = incumbent.best
    upper = _one_after_another(timed, traffic) if best is None else best.makespan
    known = incumbent if traffic.routes.complete else Incumbent(incumbent.budget, incumbent.admits)
    model, variables = build_exact_model(problem, timed, bounds, upper, best)
    solvable = search(model, variables, timed, known, seconds)
    incumbent.offer(known.best)
    if not solvable and best is not None and traffic.routes.complete:
        raise InternalError(
            f"CP-SAT finds no schedule of at most {best.makespan} ticks, where one is known; please report this graph "
            "and topology"
        )
    return solvable or not traffic.routes.complete


def _one_after_another(instance: Instance, traffic: Traffic) -> int:
    """Ticks in which all ops and all transfers, on their slowest routes, can follow one another."""
    total = sum(instance.longest)
    for request in traffic.requests:
        slowest = 0
        for source in instance.allowed[request.source]:
            for target in {d for op in request.readers for d in instance.allowed[op]} - {source}:
                if instance.component[source] == instance.component[target]:
                    routes = traffic.routes.between(request.size, source, target)
                    slowest = max(slowest, *(sum(segment.ticks for segment in route) for route in routes))
        total += slowest * (instance.device_count - 1)
    return total
