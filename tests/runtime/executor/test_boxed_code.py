"""Generated code takes its arguments out of a list, and lets each go after its last use."""

import weakref

import torch
from torch import fx

from dlplacer.runtime.executor.segment_graph import boxed_module


def test_arguments_are_let_go_after_their_last_use() -> None:
    seen: list[bool] = []
    graph = fx.Graph()
    first, second = graph.placeholder("first"), graph.placeholder("second")
    doubled = graph.call_function(torch.add, (first, first))
    probe = graph.call_function(_call, (graph.get_attr("probe"),))
    graph.output((graph.call_function(torch.mul, (doubled, second)), probe))
    given = [torch.ones(3), torch.full((3,), 5.0)]
    alive = [weakref.ref(tensor) for tensor in given]
    module = boxed_module(graph, {"probe": lambda: seen.extend(one() is not None for one in alive)})
    boxed, given = given, []
    made, _ = module.forward(boxed)
    assert boxed == []
    assert seen == [False, True]
    assert torch.equal(made, torch.full((3,), 10.0))


def _call(function):  # type: ignore[no-untyped-def]
    return function()
