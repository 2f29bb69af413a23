"""The largest difference to plain PyTorch, where numbers are none, are missing, or are narrow."""

import math

import pytest
import torch

from dlplacer.measure.steps import _largest_difference

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("ours", "theirs", "difference"),
    [
        ([0.0, 1.0], [0.0, 1.5], 0.5),
        ([NAN, 1.0], [0.0, 1.0], NAN),
        ([0.0, 1.0], [NAN, 1.0], NAN),
        ([NAN, INF, 2.0], [NAN, INF, 1.0], 1.0),
        ([INF], [-INF], INF),
        ([], [], 0.0),
    ],
)
def test_a_number_that_is_none_hides_behind_no_other(ours: list[float], theirs: list[float], difference: float) -> None:
    loss = torch.tensor(1.0), torch.tensor(1.25)
    pair = torch.tensor(ours), torch.tensor(theirs)
    for pairs in ([loss, pair], [pair, loss]):
        found = _largest_difference(pairs)
        assert math.isnan(found) if math.isnan(difference) else found == max(difference, 0.25)


def test_a_gradient_that_is_missing_on_one_side_counts_as_zeros() -> None:
    gradient = torch.tensor([0.5, -3.0])
    assert _largest_difference([(None, gradient)]) == _largest_difference([(gradient, None)]) == 3.0
    assert _largest_difference([(None, None), (gradient, gradient)]) == 0.0
