"""Every option against an oracle: contention, relays, cut-through, memory over time, the barrier at the loss."""

from collections import Counter

import pytest
from solvers.brute_force_options import optimum_under
from solvers.random_problems import random_step

from dlplacer.core.errors import InfeasibleError, NoPlanError
from dlplacer.core.plan import Plan
from dlplacer.planning.place import place

_CHUNK = 60


def _plan(seed: int, method: str = "ilp") -> Plan | None:
    graph, topology, options = random_step(seed)
    try:
        return place(graph, topology, options, method=method, work_s=20).plan
    except InfeasibleError:
        return None


@pytest.mark.parametrize("chunk", range(2))
def test_the_default_method_finds_and_proves_the_optimum(chunk: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(chunk * _CHUNK, (chunk + 1) * _CHUNK):
        optimum, plan = optimum_under(*random_step(seed)), _plan(seed)
        assert (optimum is None) == (plan is None), seed
        if optimum is None or plan is None:
            seen["infeasible"] += 1
            continue
        assert plan.makespan_s == pytest.approx(float(optimum), abs=1e-9), seed
        assert plan.status == "optimal", seed
        assert plan.lower_bound_s <= float(optimum) + 1e-9, seed
        seen.update(f"{name} {value}" for name, value in plan.options.to_dict().items())
    assert min(seen.values()) > 0
    assert len(seen) == 14


@pytest.mark.parametrize("method", ["list", "heft"])
def test_heuristics_keep_every_rule_and_bound_the_optimum(method: str) -> None:
    for seed in range(320, 350):
        optimum = optimum_under(*random_step(seed))
        try:
            plan = _plan(seed, method)
        except NoPlanError:
            continue
        assert (optimum is None) == (plan is None), seed
        if optimum is not None and plan is not None:
            assert plan.lower_bound_s <= float(optimum) + 1e-9 <= plan.makespan_s + 2e-9, seed
