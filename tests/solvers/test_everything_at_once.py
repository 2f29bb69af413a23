"""Small problems with every rule at once, up to 8 ops on 8 devices, against a naive model of the problem."""

import pytest
from solvers.naive_model import naive_optimum
from solvers.random_problems import random_everything

from dlplacer.core.errors import InfeasibleError
from dlplacer.planning.place import place


@pytest.mark.parametrize(
    "seed",
    [*range(8), *(pytest.param(seed, marks=() if seed == 159 else pytest.mark.slow) for seed in range(24, 400))],
)
def test_the_default_method_proves_the_optimum(seed: int) -> None:
    graph, topology, options = random_everything(seed)
    optimum = naive_optimum(graph, topology, options)
    if optimum is None:
        with pytest.raises(InfeasibleError):
            place(graph, topology, options, time_limit_s=30, workers=2)
        return
    plan = place(graph, topology, options, time_limit_s=60, workers=2).plan
    assert plan.lower_bound_s <= optimum + 1e-9, seed
    assert plan.makespan_s == pytest.approx(optimum, abs=1e-9), seed
    assert plan.status == "optimal", seed
