"""The linear program of favourite children (Hanen and Munier 1995; Jeon et al. 2020, Baechi, SoCC)."""

from collections.abc import Sequence

from ortools.linear_solver import pywraplp

_PREFERENCE = 0.01


def favourite_values(durations: Sequence[float], arcs: Sequence[tuple[int, int, int]]) -> list[float]:
    """[arc] → x in 0…1: 0 if the target is the source's favourite child, which need not wait for the arc's delay.

    With as many devices as ops, minimise the makespan w such that s_i + p_i + c_ij x_ij ≤ s_j and s_i + p_i ≤ w, and
    that every op has at most one favourite child and is that of at most one op: Σ_j x_ij ≥ (number of successors) − 1,
    Σ_i x_ij ≥ (number of predecessors) − 1. The integer program is relaxed to 0 ≤ x ≤ 1 and solved by the dual simplex
    method of GLOP. Where off the critical paths many x do, a small share of Σ c_ij x_ij in the objective prefers those
    that save most delay; the papers leave that open. All x are 0 should the solver fail.

    Parameters
    ----------
    durations
        [op] → p in ticks.
    arcs
        (source, target, c) of every arc; arcs without delay make no difference and count for no favourite.
    """
    solver = pywraplp.Solver.CreateSolver("GLOP")
    solver.SetSolverSpecificParametersAsString("use_dual_simplex:true")
    scale = max(1, *durations)
    start = [solver.NumVar(0, solver.infinity(), "") for _ in durations]
    favourite = [solver.NumVar(0, 1, "") for _ in arcs]
    makespan = solver.NumVar(0, solver.infinity(), "")
    children: list[list[pywraplp.Variable]] = [[] for _ in durations]
    parents: list[list[pywraplp.Variable]] = [[] for _ in durations]
    objective = solver.Objective()
    objective.SetCoefficient(makespan, 1)
    for (source, target, delay), x in zip(arcs, favourite, strict=True):
        _difference(solver, start[target], start[source], durations[source] / scale, x, delay / scale)
        objective.SetCoefficient(x, _PREFERENCE * delay / scale / len(durations))
        if delay:
            children[source].append(x)
            parents[target].append(x)
    read = {source for source, _, _ in arcs}
    for op, ticks in enumerate(durations):
        if op not in read:
            _difference(solver, makespan, start[op], ticks / scale)
        for row in (children[op], parents[op]):
            if len(row) > 1:
                solver.Add(solver.Sum(row) >= len(row) - 1)
    objective.SetMinimization()
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return [0.0] * len(arcs)
    return [x.solution_value() for x in favourite]


def _difference(
    solver: pywraplp.Solver,
    late: pywraplp.Variable,
    early: pywraplp.Variable,
    ticks: float,
    x: pywraplp.Variable | None = None,
    delay: float = 0.0,
) -> None:
    row = solver.Constraint(ticks, solver.infinity())
    row.SetCoefficient(late, 1)
    row.SetCoefficient(early, -1)
    if x is not None:
        row.SetCoefficient(x, -delay)
