"""Right plans of random problems, damaged in many ways: `check` reports a damage exactly if it does harm."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from check.mutations import ALWAYS_WRONG, MOSTLY_HARMLESS, MUTATIONS
from check.reckoning import is_right
from problem.random_hosts import with_hosts
from solvers.random_problems import random_everything, random_step

from dlplacer.check import violations
from dlplacer.core.errors import InfeasibleError, NoPlanError
from dlplacer.core.plan import Plan
from dlplacer.planning.place import place

METHODS = ("heft", "list", "sequential")


def right_plans(seeds: range) -> Iterator[Plan]:
    """Plans of random steps under random options; half of them do not tell their memory, a third waits for hosts."""
    for seed in seeds:
        random = Random(seed)
        graph, topology, options = random_step(seed, most_ops=random.choice([4, 6, 8]))
        if seed % 4 == 1:
            graph, topology, options = random_everything(seed)
        if seed % 3 == 0:
            topology = with_hosts(topology, random)
        try:
            plan = place(graph, topology, options, method=random.choice(METHODS), workers=1).plan
        except (InfeasibleError, NoPlanError):
            continue
        yield plan if random.random() < 0.5 else replace(plan, memory={})


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2))])
def test_check_reports_a_damage_exactly_if_it_does_harm(part: int) -> None:
    judged: Counter[tuple[str, bool]] = Counter()
    for number, plan in enumerate(right_plans(range(80 * part, 80 * part + 80))):
        assert is_right(plan), number
        assert violations(plan) == (), number
        for name, mutation in MUTATIONS.items():
            random = Random(f"{part} {number} {name}")
            for attempt in range(6):
                damaged = mutation(random, plan)
                if damaged is None:
                    continue
                right = is_right(damaged)
                judged[name, right] += 1
                found = violations(damaged)
                assert (found == ()) == right, (part, number, name, attempt, [str(each) for each in found])
    for name in MUTATIONS:
        assert name in MOSTLY_HARMLESS or judged[name, False] >= 5, (name, judged[name, False], judged[name, True])
        assert not (name in ALWAYS_WRONG and judged[name, True])
    assert sum(count for (_, right), count in judged.items() if right) > 300
