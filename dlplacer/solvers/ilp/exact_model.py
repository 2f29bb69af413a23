"""Small problems with traffic solved as a whole: transfers, routes and memory over time in one model."""

from dataclasses import replace

from dlplacer.core.errors import InternalError
from dlplacer.problem.problem import Problem
from dlplacer.problem.transfers import Traffic
from dlplacer.solvers.bounds.bounds import Bounds
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, search
from dlplacer.solvers.ilp.ilp_model import build_exact_model
from dlplacer.solvers.instance.incumbent import Incumbent, SchedulesOnly
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.time_limit import now

_MOST_REQUESTS_BY_PAIR = 1600
"""Transfer requests × ordered pairs of devices: 28 edges of 8 ops on 8 devices are 1,568. Above it the model takes
seconds to build and nothing is proven."""

_FEW_ROUTES_SHARE = 0.2
"""Share of the time for the model with least-delay routes only, where devices may relay: on 8 ops and devices it found
18 for 21 in two seconds, and with that slack 2,804 routes were left of 3,608. A guess."""


_MOST_TICKS = 2**45
"""Longer schedules are left out: sums of their times would not fit into words of 64 bits."""


def solve_exactly(problem: Problem, instance: Instance, bounds: Bounds, incumbent: Incumbent, seconds: float) -> bool:
    """Solve the whole of a small problem; False if that proves that no plan exists.

    Bounds and proofs count only if no route that a transfer may take is left out; else the best plan with the routes
    that are looked at is sought, and the bound stays.
    """
    traffic = instance.traffic
    if traffic is None or incumbent.closed or seconds <= 0:
        return True
    if len(traffic.requests) * instance.device_count * (instance.device_count - 1) > _MOST_REQUESTS_BY_PAIR:
        return True
    timed = instance
    if problem.options.memory == "live":
        # Parameters take memory from when they are made, so their times matter too.
        timed = replace(instance, sources=frozenset(), sinks=frozenset())
    stop_at = now() + seconds
    if not traffic.routes.complete:
        # A better schedule first, with few routes: the less slack it leaves, the fewer routes are to be listed.
        _solve(problem, timed, bounds, incumbent, _FEW_ROUTES_SHARE * seconds, every_route=False)
    return incumbent.closed or _solve(problem, timed, bounds, incumbent, stop_at - now(), every_route=True)


def _solve(
    problem: Problem, instance: Instance, bounds: Bounds, incumbent: Incumbent, seconds: float, every_route: bool
) -> bool:
    """Solve the model for some time; False if it proves that no plan exists."""
    assert instance.traffic is not None
    best = incumbent.best
    upper = _one_after_another(instance, instance.traffic) if best is None else best.makespan
    is_cut = upper > _MOST_TICKS
    upper = min(upper, _MOST_TICKS)
    model, variables = build_exact_model(problem, instance, bounds, upper, best, every_route)
    model.add(variables.makespan >= incumbent.bound)
    complete = not (variables.left_out or is_cut)
    known = incumbent if complete else SchedulesOnly(incumbent)
    solvable = search(model, variables, instance, known, seconds) is not SearchEnd.INFEASIBLE
    if not solvable and best is not None and complete:
        raise InternalError(
            f"CP-SAT finds no schedule of at most {best.makespan} ticks, where one is known; please report this graph "
            "and topology"
        )
    return solvable or not complete


def _one_after_another(instance: Instance, traffic: Traffic) -> int:
    """Ticks in which all ops and all transfers can follow one another, if any schedule keeps the memory.

    By routes of least delay, which need none in between; where they lead over devices, by all that there are or that a
    transfer may have to take.
    """
    total = sum(instance.longest)
    for request in traffic.requests:
        slowest = 0
        for source in instance.allowed[request.source]:
            for target in {d for op in request.readers for d in instance.allowed[op]} - {source}:
                if instance.component[source] == instance.component[target]:
                    routes = traffic.routes.between(request.size, source, target)
                    slowest = max(slowest, *(sum(segment.ticks for segment in route) for route in routes))
                    if traffic.routes.needs_relays and not traffic.routes.complete:
                        slowest = max(slowest, traffic.routes.long_enough(request.size, source, target))
        total += slowest * (instance.device_count - 1)
    return total
