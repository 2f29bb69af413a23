"""What follows a cut op, with what nothing waits for: a bound on its tail."""

import pytest
from solvers.brute_force import optimal_makespan
from solvers.helpers import make_graph, make_instance, make_machine, make_problem, one_worker
from solvers.random_problems import random_fork_join

from dlplacer.core.errors import InfeasibleError
from dlplacer.solvers.bounds import lower_bounds
from dlplacer.solvers.decomposition.sections import find_sections
from dlplacer.solvers.decomposition.series import SectionChain, raise_suffix_bounds, suffixes
from dlplacer.solvers.feasibility import require_feasible
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.schedule import Incumbent

# A backward pass in small: g is the gradient of a layer's output, x that of its input, w that of its weight.
BACKWARD = make_graph(
    {"f": 5, "g1": 1, "x1": 2, "w1": 3, "g0": 1, "w0": 3},
    [("f", "g1", 0), ("g1", "x1", 4), ("g1", "w1", 4), ("x1", "g0", 4), ("g0", "w0", 4)],
)


def test_an_ending_is_the_earliest_cut_op_with_few_followers_some_of_them_outside() -> None:
    instance = make_instance(BACKWARD, make_machine(2))
    names = [op.id for op in BACKWARD.ops]
    sections = find_sections(instance, names.index("w0"))
    found = {size: [names[cut] for cut, _ in suffixes(instance, sections, (size,))] for size in (2, 3, 4, 5)}
    # After x1 come g0 and w0 only, which are sections; after g1 also w1; after f all of these.
    assert found == {2: [], 3: [], 4: ["g1"], 5: ["f"]}
    assert [names[cut] for cut, _ in suffixes(instance, sections, (4, 4, 5))] == ["g1", "f"]


@pytest.mark.parametrize("first", [7000])
def test_no_ending_exceeds_the_optimum(first: int) -> None:
    tried = 0
    for seed in range(first, first + 80):
        graph, topology = random_fork_join(seed, 2, plain=False)
        problem = make_problem(graph, topology)
        try:
            require_feasible(problem)
        except InfeasibleError:
            continue
        instance = build_instance(problem)
        bounds = lower_bounds(instance)
        last = max(range(instance.op_count), key=lambda op: bounds.head[op] + instance.shortest[op])
        sections = find_sections(instance, last) if len(graph.ops) <= 7 else []
        if not any(True for _ in suffixes(instance, sections, (8,))):
            continue
        tried += 1
        chain = SectionChain.of(instance, find_sections(instance, last), one_worker())
        bounds = raise_suffix_bounds(chain, chain.raised(bounds, 1.0), Incumbent(one_worker()))
        optimum = optimal_makespan(graph, topology)
        assert optimum is None or bounds.makespan * problem.tick_s <= optimum, seed
    assert tried > 1
