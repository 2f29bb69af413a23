"""Steps that write to one of several tensors of one memory are refused."""

import pytest
import torch
from torch import nn

from dlplacer.core.errors import CaptureError
from dlplacer.frontend import Job, Optimizer, capture


class Counting(nn.Module):
    """Writes to a buffer, and reads it under the name ``head``."""

    def __init__(self, registers: bool, writes: bool) -> None:
        super().__init__()
        self.layer, self.writes = nn.Linear(6, 6), writes
        self.register_buffer("count", torch.ones(6))
        if registers:
            self.register_buffer("head", self.count[:3])
        else:
            self.head = self.count[:3]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.writes:
            self.count.add_(1.0)
        return (self.layer(x) * torch.cat([self.head, self.head]) + self.count).sum()


# Plain PyTorch reads what was just written; the traced graph knows two tensors, and reads what was there before.
@pytest.mark.parametrize("registers", [True, False])
def test_a_buffer_that_is_written_and_read_through_a_view_of_it_is_refused(registers: bool) -> None:
    with pytest.raises(CaptureError, match=r"the step writes to 'count', and '.*' is another tensor in"):
        capture(Job(Counting(registers, True), (torch.ones(2, 6),)))
    capture(Job(Counting(registers, False), (torch.ones(2, 6),)))


def test_parameters_tied_by_their_data_are_refused_where_the_step_updates_them() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight.data = model[0].weight.data
    job = Job(model, (torch.ones(2, 6),), loss=torch.sum)
    capture(job)
    with pytest.raises(CaptureError, match=r"the step writes to '0\.weight', and '1\.weight' is another tensor"):
        capture(Job(model, (torch.ones(2, 6),), loss=torch.sum, optimizer=Optimizer("sgd")))
