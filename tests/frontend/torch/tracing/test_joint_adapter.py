"""What `dlplacer.frontend.torch.tracing.joint` relies on in private APIs of torch, for every version it supports."""

import pytest
import torch
from frontend.torch.small_models import build
from torch import fx

from dlplacer.frontend import Job
from dlplacer.frontend.torch.tracing.joint import Slot, Traced, is_backward, trace
from dlplacer.frontend.torch.tracing.step_module import fake_step


def traced(job: Job) -> Traced:
    names = [f"input {position}" for position in range(20)]
    with fake_step(job) as (step, inputs):
        return trace(step, inputs, names)


@pytest.fixture(scope="module")
def counting() -> Traced:
    return traced(build("counting"))


def calls(trace: Traced) -> dict[str, fx.Node]:
    return {node.name: node for node in trace.module.graph.nodes if node.op == "call_function"}


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


def test_ops_are_tagged_as_forward_or_backward(counting: Traced) -> None:
    tags = {name: node.meta.get("partitioner_tag") for name, node in calls(counting).items()}
    assert set(tags.values()) == {"is_forward", "is_backward"}
    names = list(tags)
    assert not is_backward(calls(counting)["nll_loss_forward"])
    assert is_backward(calls(counting)["nll_loss_backward"])
    border = names.index("nll_loss_backward")
    assert [tags[name] for name in names] == ["is_forward"] * border + ["is_backward"] * (len(names) - border)


def test_forward_and_backward_are_paired_by_their_sequence_number(counting: Traced) -> None:
    numbers = {name: node.meta["seq_nr"] for name, node in calls(counting).items()}
    assert numbers["addmm"] == numbers["mm"] == numbers["sum_1"]
    assert numbers["nll_loss_forward"] == numbers["nll_loss_backward"]
    assert numbers["_log_softmax"] == numbers["_log_softmax_backward_data"]
    assert len({numbers[name] for name in ("addmm", "nll_loss_forward", "_log_softmax")}) == 3


def test_returned_values_that_are_no_tensors() -> None:
    from frontend.torch.small_models import Calls

    module = Calls(lambda self, x: {"a": self.fc(x), "b": None, "c": (3, "text")}, fc=torch.nn.Linear(8, 5))
    found = traced(Job(module, (torch.randn(4, 8),), mode="infer"))
    assert found.constants == {1: None, 2: 3, 3: "text"}
    assert [slot.position for _, slot in found.outputs] == [0]


def test_this_torch_is_one_of_the_supported_versions() -> None:
    assert (2, 11) <= tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 13)
