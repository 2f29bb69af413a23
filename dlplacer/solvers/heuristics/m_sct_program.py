"""The linear program of favourite children (Hanen and Munier 1995; Jeon et al. 2020, Baechi, SoCC)."""

from collections.abc import Sequence
from math import inf

from ortools.linear_solver.python import model_builder

from dlplacer.solvers.ilp.solver_thread import in_thread
from dlplacer.solvers.instance.time_limit import ask_time

_PREFERENCE = 0.01
"""Weight of all saved delays together, as a share of a mean op: small enough not to trade the makespan for them."""

_MOST_WORK = 5.0
"""Deterministic seconds, about as many as pass; 12,000 arcs at random took 42 s without a limit."""


def favourite_values(durations: Sequence[float], arcs: Sequence[tuple[int, int, int]]) -> list[float]:
    """[arc] → x in 0…1: 0 if the target is the source's favourite child, which need not wait for the arc's delay.

    With as many devices as ops, minimise the makespan w such that s_i + p_i + c_ij x_ij ≤ s_j and s_i + p_i ≤ w, and
    that every op has at most one favourite child and is that of at most one op: Σ_j x_ij ≥ (number of successors) − 1,
    Σ_i x_ij ≥ (number of predecessors) − 1. The integer program is relaxed to 0 ≤ x ≤ 1 and solved by the dual simplex
    method of GLOP. Where off the critical paths many x do, a small share of Σ c_ij x_ij in the objective prefers those
    that save most delay; the papers leave that open. All x are 0 should the solver fail or have too much to do.

    Parameters
    ----------
    durations
        [op] → p in ticks.
    arcs
        (source, target, c) of every arc; arcs without delay make no difference and count for no favourite.
    """
    model = model_builder.Model()  # type: ignore[no-untyped-call]
    scale = max(1, *durations)
    start = [model.new_num_var(0.0, float("inf"), None) for _ in durations]
    favourite = [model.new_num_var(0.0, 1.0, None) for _ in arcs]
    makespan = model.new_num_var(0.0, float("inf"), None)
    children: list[list[model_builder.Variable]] = [[] for _ in durations]
    parents: list[list[model_builder.Variable]] = [[] for _ in durations]
    for (source, target, delay), x in zip(arcs, favourite, strict=True):
        model.add(start[target] - start[source] - x * (delay / scale) >= durations[source] / scale)
        if delay:
            children[source].append(x)
            parents[target].append(x)
    for row in (*children, *parents):
        if len(row) > 1:
            model.add(sum(row) >= len(row) - 1)
    for op in set(range(len(durations))).difference(source for source, _, _ in arcs):
        model.add(makespan - start[op] >= durations[op] / scale)
    weights = [_PREFERENCE * delay / scale / len(durations) for _, _, delay in arcs]
    model.minimize(makespan + model_builder.LinearExpr.weighted_sum(favourite, weights))
    solver = model_builder.Solver("GLOP")
    # GLOP's own measure of work, so that the same instance always gives the same answer.
    solver.set_solver_specific_parameters(f"use_dual_simplex:true max_deterministic_time:{_MOST_WORK}")
    status = in_thread(lambda: solver.solve(model), inf, _unless_out_of_time, lambda: None)
    if status != model_builder.SolveStatus.OPTIMAL:
        return [0.0] * len(arcs)
    return [solver.value(x) for x in favourite]


def _unless_out_of_time() -> bool:
    """GLOP cannot be asked to end: where time is up it is left behind, with `_MOST_WORK` to go at most."""
    ask_time()
    return False
