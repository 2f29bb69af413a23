"""Sums of the gradients of all slices of a dimension as one tensor."""

import pytest
import torch
from frontend.torch.tracing.sheet import Sheet
from torch import fx

from dlplacer.frontend.torch.tracing.stacked_gradients import stack_gradients

aten = torch.ops.aten


def selected(sheet: Sheet, places: list[int], dim: int = 1) -> list[fx.Node]:
    """Gradients of places of a dimension of a tensor of 4 x 5 x 6."""
    shape = [4, 5, 6]
    rest = [size for at, size in enumerate(shape) if at != dim % 3]
    return [sheet.call(aten.select_backward.default, sheet.given(*rest), shape, dim, place) for place in places]


def ranges(sheet: Sheet, bounds: list[tuple[int, int]], dim: int = 2, step: int = 1) -> list[fx.Node]:
    """Gradients of ranges of a dimension of a tensor of 4 x 5 x 6."""
    found = []
    for start, stop in bounds:
        shape = [4, 5, 6]
        shape[dim] = len(range(*slice(start, stop, step).indices(shape[dim])))
        found.append(sheet.call(aten.slice_backward.default, sheet.given(*shape), [4, 5, 6], dim, start, stop, step))
    return found


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("seed", range(2))
def test_any_tree_of_all_places_becomes_one_stack(seed: int, dim: int) -> None:
    sheet = Sheet(seed)
    places = list(range((4, 5, 6)[dim]))
    sheet.draw.shuffle(places)
    assert sheet.rewritten(stack_gradients, sheet.total(selected(sheet, places, dim))) == {"stack": 1}


@pytest.mark.parametrize("places", [[0, 1, 2, 3], [0, 1, 2, 3, 3], [0, 1, 2, 3, 4, 4], [0, -5, 1, 2, 3]])
def test_places_left_out_or_read_twice_are_added(places: list[int]) -> None:
    sheet = Sheet(0)
    kinds = sheet.rewritten(stack_gradients, sheet.total(selected(sheet, places)))
    assert kinds == {"select_backward": len(places), "add": len(places) - 1}


@pytest.mark.parametrize("bounds", [[(0, 2), (2, 6)], [(3, 4), (4, 9), (0, 3)], [(0, 1), (-5, -2), (-2, 2**63 - 1)]])
def test_ranges_that_follow_each_other_become_one_tensor(bounds: list[tuple[int, int]]) -> None:
    sheet = Sheet(0)
    assert sheet.rewritten(stack_gradients, sheet.total(ranges(sheet, bounds))) == {"cat": 1}


@pytest.mark.parametrize("bounds", [[(0, 2), (3, 6)], [(0, 4), (3, 6)], [(1, 3), (3, 6)], [(0, 3), (3, 5)]])
def test_ranges_with_gaps_or_overlaps_are_added(bounds: list[tuple[int, int]]) -> None:
    sheet = Sheet(0)
    assert sheet.rewritten(stack_gradients, sheet.total(ranges(sheet, bounds))) == {"slice_backward": 2, "add": 1}


def test_other_summands_are_added_to_the_stack() -> None:
    sheet = Sheet(0)
    terms = [*selected(sheet, [0, 1, 2, 3, 4]), *selected(sheet, [0, 1], 2), sheet.given(4, 5, 6)]
    kinds = sheet.rewritten(stack_gradients, sheet.total(terms))
    assert kinds == {"stack": 1, "select_backward": 2, "add": 3}
