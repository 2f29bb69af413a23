"""What sums of sizes fill of a memory, against all subsets."""

from itertools import combinations
from random import Random

import pytest

from dlplacer.solvers.bounds.bounds import reachable_capacity


def test_equal_layers_leave_the_rest_of_a_device_empty() -> None:
    assert reachable_capacity([3] * 10, [20, 31, None, 2]) == [18, 31, None, 0]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_largest_sum_of_any_subset(seed: int) -> None:
    random = Random(seed)
    unit = random.choice([1, 5, 2**28])
    sizes = [unit * random.randint(0, 9) for _ in range(random.randint(1, 9))]
    sums = {sum(chosen) for count in range(len(sizes) + 1) for chosen in combinations(sizes, count)}
    for room in range(0, sum(sizes), max(1, sum(sizes) // 13)):
        expected = max(size for size in sums if size <= room)
        assert reachable_capacity(sizes, [room]) == [expected]


def test_too_many_sums_are_rounded_to_the_common_divisor() -> None:
    sizes = [2 * (10**9 + number) for number in range(5)]
    assert reachable_capacity(sizes, [5 * 10**9 + 1]) == [5 * 10**9]
