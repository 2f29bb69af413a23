"""Gradients of all slices of a tensor as one tensor: the same numbers as plain PyTorch's."""

import copy
from collections import Counter

import pytest
import torch
from runtime.random_plans import random_plan
from torch import nn

import dlplacer as dp
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites


class Sliced(nn.Module):
    """Attention or a recurrent layer whose tensors are read slice by slice."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer, self.state = kind, nn.Linear(6, 18), nn.Linear(18, 18)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.kind == "steps":
            state = torch.zeros(x.shape[0], 18)
            for at in range(x.shape[1]):
                state = torch.tanh(self.state(state) + y[:, at])
            return state.sum()
        if self.kind == "places":
            packed = y.view(-1, 3, 6)
            queries, keys, values = packed[:, 0], packed[:, 1], packed[:, -1]
        else:
            y = y.flatten(0, 1)
            queries, keys, values = y[:, :6], y[:, 6:12], y[:, 12:]
        return torch.sum((torch.softmax(queries @ keys.T, 1) @ values).square())


class Packed(nn.Module):
    """Torch's own attention, which picks queries, keys and values by their places."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.attention(x, x, x)[0]
        return found.square().sum()


MODULES = {
    "steps": (lambda: Sliced("steps"), "aten.stack"),
    "places": (lambda: Sliced("places"), "aten.stack"),
    "ranges": (lambda: Sliced("ranges"), "aten.cat"),
    "torch's attention": (Packed, "aten.stack"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_step_of_stacked_gradients_equals_plain_pytorch(name: str) -> None:
    build, kind = MODULES[name]
    module = build()
    plain = copy.deepcopy(module)
    x = torch.randn(3, 5, 6)
    job = Job(module, (x,), (), lambda loss: loss)
    graph = capture_job(job, default_rewrites()).graph
    kinds = Counter(op.kind for op in graph.ops if op.phase == "backward")
    assert kinds[kind] == 1
    assert not kinds["aten.select_backward"] + kinds["aten.slice_backward"]
    expected = plain(x)
    expected.backward()
    placed = dp.apply(job, random_plan(graph, 1), devices=["cpu"])
    try:
        assert torch.equal(placed.step(x).detach(), expected.detach())
    finally:
        placed.close()
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
