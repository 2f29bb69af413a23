"""Sums of products over the calls of a layer as one product, of gradients of all slices as one tensor."""

import pytest
import torch
from frontend.torch.tracing.sheet import Sheet
from torch import fx, nn
from torch.nn import functional

from dlplacer.core.graph import OpGraph
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job
from dlplacer.frontend.torch.tracing.passes import join_gradients, stack_gradients

aten = torch.ops.aten


@pytest.mark.parametrize("seed", range(3))
def test_any_tree_of_products_becomes_one_product(seed: int) -> None:
    sheet = Sheet(seed)
    count = sheet.draw.randint(4, 9)
    terms = [sheet.product(sheet.draw.randint(1, 20), (6, 5)) for _ in range(count)]
    kinds = sheet.rewritten(join_gradients, sheet.total(terms))
    assert kinds == {"mm": 1, "cat": 2, "t": 1}


def test_what_is_read_elsewhere_and_what_is_no_product_is_added_as_before() -> None:
    sheet = Sheet(1)
    read = sheet.product(1, (6, 5))
    other = sheet.call(aten.sin.default, sheet.given(6, 5))
    total = sheet.total([read, other, *(sheet.product(1, (6, 5)) for _ in range(4))])
    kinds = sheet.rewritten(join_gradients, total, sheet.call(aten.cos.default, read))
    assert kinds["mm"] == 2
    assert kinds["add"] == 2


def test_views_on_the_way_into_the_sum_are_kept() -> None:
    sheet = Sheet(3)
    turned = [sheet.call(aten.t.default, sheet.product(2, (6, 5))) for _ in range(4)]
    straight = [sheet.product(1, (5, 6)) for _ in range(4)]
    kinds = sheet.rewritten(join_gradients, sheet.total([*turned, *straight]))
    # One product of those that are turned, one of the others; 2 factors and 1 result are turned.
    assert kinds == {"mm": 2, "cat": 4, "t": 3, "add": 1}


def test_sums_of_the_same_rows_follow_their_products() -> None:
    sheet = Sheet(4)
    products, sums = [], []
    for _ in range(4):
        gradient, read = sheet.given(1, 2, 6), sheet.given(2, 5)
        # Two views of one tensor, as autograd makes them for two readers.
        left, rows = (sheet.call(aten.view.default, gradient, [2, 6]) for _ in range(2))
        products.append(sheet.call(aten.mm.default, sheet.call(aten.t.default, left), read))
        sums.append(sheet.call(aten.view.default, sheet.call(aten.sum.dim_IntList, rows, [0], True), [6]))
    kinds = sheet.rewritten(join_gradients, sheet.total(sums), sheet.total(products))
    assert (kinds["mm"], kinds["sum"], kinds["add"], kinds["cat"]) == (1, 1, 0, 2)


class Recurrent(nn.Module):
    """A recurrent layer and a head that reads all its states."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(12, 16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x)[0]).flatten(0, 1)
        return out


def test_a_recurrent_layer_has_one_product_for_the_gradient_of_a_weight() -> None:
    module, x = Recurrent(), torch.randn(2, 6, 12)
    job = Job(module, (x,), (torch.randint(5, (12,)),), functional.cross_entropy)
    apart, joined = (capture_job(job, ["drop-detach", *more]).graph for more in ([], ["join-gradients"]))
    weight = next(op.outputs[0].shape for op in joined.ops if op.id == "layer.weight_hh_l0")

    def products(graph: OpGraph) -> int:
        made = [op for op in graph.ops if op.kind == "aten.mm" and op.phase == "backward"]
        return sum(op.outputs[0].shape in (weight, weight[::-1]) for op in made)

    assert products(joined) == 1
    assert products(apart) == 6


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
