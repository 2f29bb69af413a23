"""A replica's or a micro-batch's part of a job."""

import pytest
import torch
from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.frontend import Job
from dlplacer.frontend.torch.batch_part import likely_dims, part_of
from dlplacer.models import mlp
from dlplacer.planning.pipeline.micro_batch_names import BatchCut


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    parts = [part_of(mlp(batch_size=6), number, BatchCut(3)) for number in range(3)]
    assert [len(part.args[0]) for part in parts] == [2, 2, 2]
    with pytest.raises(InputError, match=r"shape \[6, 64\] cannot be cut into 4 equal parts"):
        part_of(mlp(batch_size=6), 0, BatchCut(4))


def test_inputs_are_cut_where_the_cut_says() -> None:
    rows, columns, whole = torch.arange(8.0).view(4, 2), torch.arange(8.0).view(2, 4), torch.tensor(3.0)
    job = Job(nn.Identity(), (rows, columns), (whole,), lambda output, *targets: output)
    part = part_of(job, 1, BatchCut(2, (0, 1, None)))
    assert torch.equal(part.args[0], rows[2:])
    assert torch.equal(part.args[1], columns[:, 2:])
    assert part.targets[0] is whole


def test_an_input_of_the_batch_size_may_be_none_of_the_batch() -> None:
    job = Job(nn.Identity(), (torch.zeros(4, 6), torch.zeros(4, 3)))
    first, *others = likely_dims(job, 2)
    assert first == (0, 0)
    assert (0, None) in others
    assert (None, None) not in others
