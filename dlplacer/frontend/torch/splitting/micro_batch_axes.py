"""The whole step in micro-batches: every op that reads samples is split along them, and gradients are sums of parts."""

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import is_folded, is_random, picked_output
from dlplacer.frontend.torch.splitting.names import OpSplit
from dlplacer.frontend.torch.splitting.pattern import SUM, Pattern, bounds, is_tensor, value
from dlplacer.frontend.torch.splitting.rules import patterns_of
from dlplacer.frontend.torch.splitting.views import view_of_piece
from dlplacer.frontend.torch.tracing import joint


def micro_batches(graph: fx.Graph, samples: Collection[str], parts: int) -> list[OpSplit]:
    """The splits that run a step as so many micro-batches with gradient accumulation.

    Samples are followed from the inputs through the graph. The loss, one value of all samples, stays one op, and so
    does the op that begins its backward pass.

    Parameters
    ----------
    samples
        Names of the inputs whose first dimension counts the samples.

    Raises
    ------
    CaptureError
        If an op mixes samples or draws random numbers, so that micro-batches would change the result.
    """
    return _Walk(parts, dict.fromkeys(samples, 0)).run(graph)


class _Walk:
    """Follows the dimension along which the samples of each value lie."""

    def __init__(self, parts: int, lies: dict[str, int]) -> None:
        self.parts = parts
        self.lies = lies
        self.outputs: dict[str, tuple[int | None, ...]] = {}
        self.splits: list[OpSplit] = []

    def run(self, graph: fx.Graph) -> list[OpSplit]:
        for node in graph.nodes:
            if node.op == "call_function":
                (self._fold if is_folded(node) else self._call)(node)
        return self.splits

    def _fold(self, node: fx.Node) -> None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if node.target is operator.getitem:
            dims = self.outputs.get(source.name, ())
            dim = dims[picked_output(node)] if dims else None
        else:
            dim = self._dim_of_view(node, source)
        if dim is not None and dim != SUM:
            self.lies[node.name] = dim
            if isinstance(node.meta["val"], (tuple, list)):
                self.outputs[node.name] = (dim,) * len(node.meta["val"])

    def _dim_of_view(self, node: fx.Node, source: fx.Node) -> int | None:
        dim = self.lies.get(source.name)
        if dim is None:
            return None
        views = [view_of_piece(node, dim, piece) for piece in bounds(value(source).shape[dim], self.parts)]
        if views[0] is None or None in views:
            raise _mixes(node, "takes samples of several micro-batches together")
        return views[0].dim

    def _call(self, node: fx.Node) -> None:
        wanted = {index: dim for index, entry in enumerate(node.args) if (dim := self._dim_of(entry)) is not None}
        if not wanted:
            return
        named = {name: dim for name, entry in node.kwargs.items() if (dim := self._dim_of(entry)) is not None}
        cuts = patterns_of(node).items()
        found = next(((axis, cut) for axis, cut in cuts if _reads(cut, wanted, named)), None)
        if found is None:
            self._leave_whole(node)
            return
        axis, cut = found
        if cut.extent(node) < self.parts:
            raise CaptureError(
                f"op {node.name!r} has {cut.extent(node)} samples, fewer than {self.parts} micro-batches; give fewer"
            )
        self.splits.append(OpSplit(node.name, axis, self.parts))
        self.outputs[node.name] = cut.outputs
        if isinstance(node.meta["val"], torch.Tensor) and cut.outputs[0] not in (None, SUM):
            self.lies[node.name] = cut.outputs[0]

    def _dim_of(self, argument: Any) -> int | None:
        if isinstance(argument, (list, tuple)):
            dims = [dim for entry in argument if (dim := self._dim_of(entry)) is not None]
            return dims[0] if dims else None
        return self.lies.get(argument.name) if isinstance(argument, fx.Node) else None

    def _leave_whole(self, node: fx.Node) -> None:
        """The loss and the first op of its backward pass; nothing else may read samples and not be split."""
        results = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else (node.meta["val"],)
        is_loss = all(result is None or result.numel() == 1 for result in results)
        begins_backward = any(is_tensor(entry) and value(entry).dim() == 0 for entry in node.args)
        if is_random(node):
            raise _mixes(node, "draws random numbers for all samples at once")
        if not is_loss and not begins_backward:
            raise _mixes(node, "mixes samples, as batch norm in training mode does")


def _reads(cut: Pattern, wanted: Mapping[int, int], named: Mapping[str, int]) -> bool:
    return all(cut.inputs.get(index) == dim for index, dim in wanted.items()) and all(
        cut.named.get(name) == dim for name, dim in named.items()
    )


def _mixes(node: fx.Node, why: str) -> CaptureError:
    module = joint.module_path(node)
    where = f" of module {module!r}" if module else ""
    return CaptureError(
        f"op {node.name!r}{where} ({node.target}) {why}: micro-batches would change the result; use another layer "
        "there (group norm for batch norm), evaluation mode, or split single ops"
    )
