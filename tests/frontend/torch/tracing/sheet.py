"""Graphs written by hand, for rewrites that must not change their values."""

import random
from collections import Counter
from collections.abc import Callable

import torch
from torch import fx

from dlplacer.frontend.torch.splitting import stand_in

aten = torch.ops.aten


class Sheet:
    """A graph under construction, with the values that it is run on."""

    def __init__(self, seed: int) -> None:
        self.graph, self.values, self.draw = fx.Graph(), list[torch.Tensor](), random.Random(seed)
        torch.manual_seed(seed)

    def given(self, *shape: int) -> fx.Node:
        node = self.graph.placeholder(f"x{len(self.values)}")
        self.values.append(torch.randn(*shape, dtype=torch.float64))
        node.meta["val"] = self.values[-1]
        return node

    def call(self, target: object, *args: object) -> fx.Node:
        node = self.graph.create_node("call_function", target, args)  # type: ignore[arg-type]
        node.meta["val"] = stand_in(node)
        return node

    def product(self, rows: int, shape: tuple[int, int]) -> fx.Node:
        """A product of `shape` that contracts so many rows."""
        left, right = self.given(rows, shape[0]), self.given(rows, shape[1])
        return self.call(aten.mm.default, self.call(aten.t.default, left), right)

    def total(self, terms: list[fx.Node]) -> fx.Node:
        """The sum in a random order, parenthesised at random."""
        while len(terms) > 1:
            first, second = self.draw.sample(terms, 2)
            terms = [term for term in terms if term not in (first, second)]
            terms.append(self.call(aten.add.Tensor, first, second))
        return terms[0]

    def rewritten(self, rewrite: Callable[[fx.Graph], None], *results: fx.Node) -> Counter[str]:
        """Kinds of the calls that are left after a rewrite, which gives the same values."""
        self.graph.output(results)
        before = fx.GraphModule({}, self.graph)(*self.values)
        rewrite(self.graph)
        self.graph.lint()
        after = fx.GraphModule({}, self.graph)(*self.values)
        for ours, theirs in zip(after, before, strict=True):
            torch.testing.assert_close(ours, theirs)
        calls = (node for node in self.graph.nodes if node.op == "call_function")
        return Counter(str(node.target).split(".")[1] for node in calls)
