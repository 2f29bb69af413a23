"""Copies of a placed module, and what takes its place in a file."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from frontend.torch.small_models import build, graph_of
from runtime.random_plans import needs_two_cores, placed_at_random

from dlplacer.core.errors import InputError

pytestmark = needs_two_cores


@pytest.mark.parametrize("save", [torch.save, pickle.dump, lambda placed, _: copy.deepcopy(placed)])
def test_copying_or_saving_the_module_itself_says_what_to_save(save: Any) -> None:
    job = build("linear")
    with (
        placed_at_random(job, graph=graph_of("linear")) as placed,
        pytest.raises(InputError, match=r"torch.save\(placed.state_dict\(\), file\), and the plan"),
    ):
        save(placed, io.BytesIO())
