"""Where a loss comes from: a function, the module itself, or a field of what the module returns."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from frontend.torch.small_models import Calls
from torch import nn
from torch.nn import functional

from dlplacer.frontend import Job, capture


@dataclass
class Output:
    """A dataclass that pytrees do not know."""

    loss: torch.Tensor
    logits: torch.Tensor


def job_that_returns(make: Any) -> Job:
    def forward(self: Any, x: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.fc(x)
        return make(functional.cross_entropy(logits, labels), logits)

    return Job(Calls(forward, fc=nn.Linear(8, 5)), (torch.randn(4, 8),), (torch.randint(5, (4,)),))


@pytest.mark.parametrize(
    "make",
    [lambda loss, logits: {"loss": loss, "logits": logits}, lambda loss, logits: Output(loss, logits)],
    ids=["mapping", "dataclass"],
)
def test_a_field_named_loss_is_the_loss(make: Any) -> None:
    bare = capture(job_that_returns(lambda loss, logits: loss))
    assert capture(job_that_returns(make)).structure_sha256 == bare.structure_sha256
