"""What stands between split ops: nothing where they are cut alike, else slices, exchanges, one join, or a sum."""

from typing import Any

import pytest
import torch
from frontend.torch.splitting.one_op import run, split_graph, targets, traced

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.splitting import OpSplit

aten = torch.ops.aten
X = torch.randn((6, 4, 5), generator=torch.Generator().manual_seed(1))


def same_results(call: Any, splits: list[OpSplit]) -> list[str]:
    """Kinds of the calls of the split graph, which gives what the whole graph gives."""
    graph = split_graph(call, [X], splits)
    for ours, theirs in zip(run(graph, [X]), run(traced(call, [X]), [X]), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()
    return targets(graph)


def test_parts_cut_along_another_axis_exchange_slices() -> None:
    kinds = same_results(lambda x: aten.exp(aten.relu(x)), [OpSplit("relu", "batch", 2), OpSplit("exp", "channel", 2)])
    assert kinds.count("cat") == 3
    assert kinds[:4] == ["slice", "relu", "slice", "relu"]


VIEWS: dict[str, Any] = {
    "transpose": lambda x: aten.exp(aten.transpose(aten.relu(x), 0, 1)),
    "permute": lambda x: aten.exp(aten.permute(aten.relu(x), [2, 0, 1])),
    "unsqueeze": lambda x: aten.exp(aten.unsqueeze(aten.relu(x), 0)),
    "flat": lambda x: aten.exp(aten.view(aten.relu(x), [120])),
    "rows": lambda x: aten.exp(aten.view(aten.relu(x), [24, 5])),
    "finer rows": lambda x: aten.exp(aten.view(aten.relu(x), [2, 3, 4, 5])),
    "select": lambda x: aten.exp(aten.select(aten.relu(x), 1, 2)),
    "slice": lambda x: aten.exp(aten.slice(aten.relu(x), 1, 1, 3)),
    "expand": lambda x: aten.exp(aten.expand(aten.unsqueeze(aten.relu(x), 1), [6, 2, 4, 5])),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_keep_pieces_apart(view: str) -> None:
    whole = traced(VIEWS[view], [X])
    result = next(node for node in whole.nodes if node.name == "exp").meta["val"]
    # the samples are now the dimension of 6, or of 120 or 24 rows, or of 2 where they were made finer
    dim = next(dim for dim, size in enumerate(result.shape) if size in (2, 6, 24, 120))
    axis = ("batch", "channel")[dim] if dim < 2 else f"dim{dim}"
    kinds = same_results(VIEWS[view], [OpSplit("relu", "batch", 2), OpSplit("exp", axis, 2)])
    assert kinds.count("cat") == 1
    assert kinds[-1] in ("cat", "permute")


DIVISIONS: dict[str, Any] = {
    "split": lambda x: aten.split.Tensor(aten.relu(x), 2, 1),
    "split with sizes": lambda x: aten.split_with_sizes(aten.relu(x), [1, 4], -1),
    "unbind": lambda x: aten.unbind(aten.relu(x), 2),
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_a_value_that_is_divided_along_another_dimension_stays_in_pieces(name: str) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        parts = DIVISIONS[name](x)
        return aten.exp(parts[0]), aten.sin(parts[-1])

    splits = [OpSplit("relu", "batch", 2), OpSplit("exp", "batch", 2), OpSplit("sin", "batch", 2)]
    kinds = same_results(call, splits)
    assert kinds.count("cat") == 2
    assert kinds[-2:] == ["cat", "cat"]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: aten.exp(aten.view(aten.relu(x), [5, 24])),
        lambda x: aten.exp(aten.select(aten.relu(x), 0, 2)),
        lambda x: aten.exp(aten.slice(aten.relu(x), 0, 1, 4)),
    ],
)
def test_views_that_mix_pieces_read_the_whole(call: Any) -> None:
    kinds = same_results(call, [OpSplit("relu", "batch", 2), OpSplit("exp", "batch", 2)])
    assert kinds.count("cat") == 2


def test_an_axis_along_which_parts_would_mix_is_refused() -> None:
    call = lambda x: aten._softmax(x, 0, False)  # noqa: E731
    with pytest.raises(CaptureError, match=r"split along 'batch': its parts would mix; .* channel, dim2 only"):
        split_graph(call, [X], [OpSplit("_softmax", "batch", 2)])
