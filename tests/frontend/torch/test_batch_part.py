"""A replica's part of a job."""

import pytest

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.batch_part import part_of
from dlplacer.models import mlp


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    parts = [part_of(mlp(batch_size=6), number, 3) for number in range(3)]
    assert [len(part.args[0]) for part in parts] == [2, 2, 2]
    with pytest.raises(InputError, match=r"shape \[6, 64\] cannot be cut into 4 equal parts"):
        part_of(mlp(batch_size=6), 0, 4)
