"""The exact grouping against every partition, its quadratic form, the other policies and the replay."""

import random
from itertools import combinations

import pytest

from dlplacer.data_parallel.groups import LayerChain, best_groups, makespan_s
from dlplacer.data_parallel.groups.policies import compare_groupings


def random_chain(draw: random.Random, count: int) -> LayerChain:
    ratio, startup_s = draw.choice((0.3, 1.0, 3.0)), draw.choice((0.0, 0.1, 1.0, 5.0))
    return LayerChain(
        startup_s,
        tuple(ratio * draw.choice((0.0, draw.random(), 4 * draw.random())) for _ in range(count)),
        tuple(draw.choice((0.0, draw.random(), draw.random())) for _ in range(count)),
        tuple(draw.randrange(1, 50) for _ in range(count)),
    )


def partitions(count: int) -> list[tuple[int, ...]]:
    inner = range(1, count)
    return [(*cuts, count) for size in range(count) for cuts in combinations(inner, size)]


def test_paper_example_of_four_layers() -> None:
    # Pulls of 1 s behind a start-up of 1 s, layers of 2 s: [1], [2..4] ends at max(2 + 8, 2 + 4 + 6) = 12 s;
    # [1], [2], [3], [4] at max(2 + 8, 4 + 6, 6 + 4, 8 + 2) = 10 s, and no grouping can be below 2 + 8.
    chain = LayerChain(1.0, (1.0,) * 4, (2.0,) * 4)
    assert makespan_s(chain, (1, 4)) == pytest.approx(12.0)
    assert makespan_s(chain, best_groups(chain)) == pytest.approx(10.0)


def test_groups_equal_the_best_partition_under_any_cap() -> None:
    draw = random.Random(2)
    for _ in range(500):
        chain = random_chain(draw, draw.randint(1, 9))
        cap_bytes = draw.choice([None, draw.randint(20, 150)])
        fitting = [
            cuts
            for cuts in partitions(chain.layer_count)
            if cap_bytes is None
            or all(
                last - before == 1 or sum(chain.bytes[before:last]) <= cap_bytes
                for before, last in zip((0, *cuts), cuts, strict=False)
            )
        ]
        found = best_groups(chain, cap_bytes)
        assert found in fitting
        assert makespan_s(chain, found) == pytest.approx(min(makespan_s(chain, cuts) for cuts in fitting))


def test_never_worse_than_any_policy_and_above_simple_bounds() -> None:
    draw = random.Random(5)
    for _ in range(300):
        chain = random_chain(draw, draw.randint(1, 40))
        groupings = compare_groupings(chain)
        best_s = groupings[-1].makespan_s
        assert groupings[-1].policy == "optimal"
        assert all(best_s <= grouping.makespan_s * (1 + 1e-12) for grouping in groupings)
        total_s = chain.startup_s + sum(chain.transfer_s) + chain.compute_s[-1]
        first_s = chain.startup_s + chain.transfer_s[0] + sum(chain.compute_s)
        assert best_s >= max(total_s, first_s) * (1 - 1e-12)
