"""What `dlplacer.frontend.torch.tracing.joint` relies on in private APIs of torch, for every version it supports."""

import pytest
import torch
from frontend.torch.small_models import build

from dlplacer.frontend import Job
from dlplacer.frontend.torch.tracing.joint import Slot, Traced, trace
from dlplacer.frontend.torch.tracing.step_module import fake_step


def traced(job: Job) -> Traced:
    names = [f"input {position}" for position in range(20)]
    with fake_step(job) as (step, inputs):
        return trace(step, inputs, names)


@pytest.fixture(scope="module")
def counting() -> Traced:
    return traced(build("counting"))


def test_inputs_are_decoded(counting: Traced) -> None:
    assert list(counting.inputs.values()) == [
        Slot("parameter", "fc.weight"),
        Slot("parameter", "fc.bias"),
        Slot("buffer", "calls"),
        Slot("buffer", "mean"),
        Slot("input", position=0),
        Slot("input", position=1),
        Slot("tangent", position=0),
    ]


def test_outputs_are_decoded(counting: Traced) -> None:
    assert [slot for _, slot in counting.outputs] == [
        Slot("mutation", "calls"),
        Slot("mutation", "mean"),
        Slot("output", position=0),
        Slot("gradient", "fc.weight"),
        Slot("gradient", "fc.bias"),
    ]
    assert counting.constants == {}
    assert counting.side_effects == ()


def test_returned_values_that_are_no_tensors() -> None:
    from frontend.torch.small_models import Calls

    module = Calls(lambda self, x: {"a": self.fc(x), "b": None, "c": (3, "text")}, fc=torch.nn.Linear(8, 5))
    found = traced(Job(module, (torch.randn(4, 8),), mode="infer"))
    assert found.constants == {1: None, 2: 3, 3: "text"}
    assert [slot.position for _, slot in found.outputs] == [0]


def test_this_torch_is_one_of_the_supported_versions() -> None:
    assert (2, 11) <= tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 13)
