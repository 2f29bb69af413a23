"""Models of transformers without a loss: nested outputs come back as the model returns them, with other batches too."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from runtime.families.all_families import build
from runtime.random_plans import needs_two_cores, random_plan
from torch.utils import _pytree as pytree

import dlplacer as dp
from dlplacer.frontend import Job

pytest.importorskip("transformers")
pytestmark = needs_two_cores


def without_labels(name: str) -> Job:
    job = build(name)
    kwargs = {key: value for key, value in job.kwargs.items() if key not in ("labels", "return_loss")}
    return replace(job, kwargs=kwargs, mode="infer")


def same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    first, second = pytree.tree_flatten(ours), pytree.tree_flatten(theirs)
    assert first[1] == second[1]
    for mine, other in zip(first[0], second[0], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["BERT-like", *(pytest.param(name, marks=pytest.mark.slow) for name in ("GPT-like", "CLIP-like"))]
)
def test_outputs_are_those_of_the_model(name: str) -> None:
    job, plain = without_labels(name), without_labels(name).module.eval()
    placed = dp.apply(job, random_plan(dp.capture(job)), devices=["cpu:0", "cpu:1"])
    try:
        half = {key: value[:1] if isinstance(value, torch.Tensor) else value for key, value in job.kwargs.items()}
        with torch.no_grad():
            same(placed(**job.kwargs), plain(**job.kwargs))
            same(placed(**half), plain(**half))
    finally:
        placed.close()
