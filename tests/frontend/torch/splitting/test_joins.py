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


@pytest.mark.parametrize(
    "call",
    [
        lambda x: aten.exp(aten.view(aten.relu(x), [24, 5])),
        lambda x: aten.exp(aten.permute(aten.relu(x), [2, 0, 1])),
        lambda x: aten.exp(aten.unbind(aten.relu(x), 2)[1]),
        lambda x: aten.exp(aten.view(aten.relu(x), [5, 24])),
        lambda x: aten.exp(aten.select(aten.relu(x), 0, 2)),
        lambda x: aten.exp(aten.slice(aten.relu(x), 0, 1, 4)),
    ],
)
def test_views_read_the_whole(call: Any) -> None:
    same_results(call, [OpSplit("relu", "batch", 2), OpSplit("exp", "batch", 2)])


def test_an_axis_along_which_parts_would_mix_is_refused() -> None:
    call = lambda x: aten._softmax(x, 0, False)  # noqa: E731
    with pytest.raises(CaptureError, match=r"split along 'batch': its parts would mix; .* channel, dim2 only"):
        split_graph(call, [X], [OpSplit("_softmax", "batch", 2)])
