"""m-SCT: small communication times (Hanen and Munier 1995; Jeon et al. 2020, Baechi, SoCC), memory-aware."""

from collections.abc import Sequence
from functools import lru_cache
from math import inf

from dlplacer.solvers.bounds.heads_tails import arc_delays
from dlplacer.solvers.heuristics.etf import Candidate, EarliestFirst, Queue
from dlplacer.solvers.heuristics.occupancy import Fixed, Priority
from dlplacer.solvers.heuristics.orders import upward_ranks
from dlplacer.solvers.ilp.solver_thread import in_thread
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import ask_time

_MOST_ARCS = 10_000
"""Above it the linear program takes seconds."""

_THRESHOLD = 0.5
"""Below it x counts as 0: as Baechi rounds."""

_DIGITS = 6
"""Digits of x that count, so that the noise of the simplex method decides nothing."""


def m_sct(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of m-SCT, or None if an op fits on no device that it may use.

    Every op may have a favourite child, which a linear program chooses (`favourite_children`). Ops are taken as by
    m-ETF, but a device whose last op has a favourite child that could start nowhere earlier waits for it, and meanwhile
    takes only urgent ops: those whose data have been everywhere by then, and that no other device can start as early.

    Other than in the papers: what `m_etf` says, and that the child is waited for only when all that it reads has ended,
    as Baechi's program does.
    """
    return _SmallCommunication(instance, priority, fixed).run()


@lru_cache(maxsize=1)
def favourite_children(instance: Instance) -> tuple[int, ...]:
    """[op] → its favourite child, or -1; no op is the favourite of two.

    The linear program takes mean durations and least delays between different devices; sources of zero time and arcs
    within a block take no part. Arcs are then gone through by rising x, and by falling delay plus upward rank of the
    child where x is the same to six digits: an arc with x < 0.5, as Baechi rounds, whose ends are both still without
    makes a favourite. With more than 10,000 arcs, where the program would take seconds, all x count as 0.
    """
    working = [op for op in instance.order if op not in instance.sources]
    position = {op: number for number, op in enumerate(working)}
    arcs = []
    for op in working:
        ask_time()
        for target, delay in instance.successors[op]:
            ticks = arc_delays(instance, op, target, delay).cut
            arcs.append((position[op], position[target], ticks if ticks < FAR else 0))
    values = [0.0] * len(arcs)
    if 0 < len(arcs) <= _MOST_ARCS:
        values = favourite_values([instance.mean_duration[op] for op in working], arcs)
    ranks = upward_ranks(instance)
    child, claimed = [-1] * instance.op_count, set()
    gain = [ticks + ranks[working[target]] for _, target, ticks in arcs]
    for number in sorted(range(len(arcs)), key=lambda number: (round(values[number], _DIGITS), -gain[number])):
        source, target, ticks = arcs[number]
        if ticks and values[number] < _THRESHOLD and child[working[source]] < 0 and target not in claimed:
            child[working[source]] = working[target]
            claimed.add(target)
    return tuple(child)


class _SmallCommunication(EarliestFirst):
    """m-ETF with devices that wait for favourite children."""

    def __init__(self, instance: Instance, priority: Priority, fixed: Fixed) -> None:
        super().__init__(instance, priority, fixed)
        self.child = favourite_children(instance)
        self.last = [-1] * instance.device_count
        self.inputs_end = [0] * instance.op_count
        self.everywhere = [0] * instance.op_count
        self.urgent = [Queue() for _ in self.free]

    def release(self, op: int) -> None:
        super().release(op)
        devices = self.instance.allowed[op]
        self.everywhere[op] = max(max(self.arrival[op][d], self.occupancy.source_arrival(op, d)) for d in devices)
        for device in devices:
            self.urgent[device].push(self.everywhere[op], self.priority[op], op)

    def candidates(self, device: int) -> list[tuple[Candidate, int]]:
        found = super().candidates(device)
        if not found or not self._waits(device, found[0][0][0]):
            return found
        child = self.child[self.last[device]]
        own = (self._start(child, device), self.priority[child], child)
        urgent = self.urgent[device].first(self.free[device], lambda op: self._urgent_at(op, device))
        return [(own, 0)] if urgent is None else [(own, 0), (urgent, 1)]

    def take(self, op: int, device: int, start: int) -> None:
        super().take(op, device, start)
        self.last[device] = op
        for target, _ in self.instance.successors[op]:
            self.inputs_end[target] = max(self.inputs_end[target], self.free[device])

    def _waits(self, device: int, now: int) -> bool:
        """True if all that the favourite child of its last op reads has ended, and it starts nowhere earlier."""
        child = -1 if self.last[device] < 0 else self.child[self.last[device]]
        if child < 0 or self.done[child] or self.missing[child] or self.inputs_end[child] > now:
            return False
        if not self.occupancy.admits(child, device):
            return False
        own = self._start(child, device)
        others = (other for other in self.instance.allowed[child] if other != device)
        return not any(self.occupancy.admits(child, other) and self._start(child, other) < own for other in others)

    def _start(self, op: int, device: int) -> int:
        return max(self.free[device], self.arrival_at(op, device) or 0)

    def _urgent_at(self, op: int, device: int) -> int | None:
        """When all that an op reads can have reached every device; None if it may not go to this one."""
        arrival = self.arrival_at(op, device)
        return None if arrival is None else max(arrival, self.everywhere[op])


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
    from ortools.linear_solver.python import model_builder

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
