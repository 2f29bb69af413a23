"""The largest difference to plain PyTorch, where numbers are none, are missing, or are narrow."""

import copy
import json
import math
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from dlplacer.core.topology import Device, Topology
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.measure.run_report import Figures, RunReport
from dlplacer.measure.selftest import random_plan as selftest_plan
from dlplacer.measure.steps import PlacedJob, _largest_difference, compare_with_eager
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.placed.placed_module import PlacedModule

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("ours", "theirs", "difference"),
    [
        ([0.0, 1.0], [0.0, 1.5], 0.5),
        ([NAN, 1.0], [0.0, 1.0], NAN),
        ([0.0, 1.0], [NAN, 1.0], NAN),
        ([NAN, INF, 2.0], [NAN, INF, 1.0], 1.0),
        ([INF], [-INF], INF),
        ([], [], 0.0),
    ],
)
def test_a_number_that_is_none_hides_behind_no_other(ours: list[float], theirs: list[float], difference: float) -> None:
    loss = torch.tensor(1.0), torch.tensor(1.25)
    pair = torch.tensor(ours), torch.tensor(theirs)
    for pairs in ([loss, pair], [pair, loss]):
        found = _largest_difference(pairs)
        assert math.isnan(found) if math.isnan(difference) else found == max(difference, 0.25)


def test_a_gradient_that_is_missing_on_one_side_counts_as_zeros() -> None:
    gradient = torch.tensor([0.5, -3.0])
    assert _largest_difference([(None, gradient)]) == _largest_difference([(gradient, None)]) == 3.0
    assert _largest_difference([(None, None), (gradient, gradient)]) == 0.0


class Several(nn.Module):
    """Returns what is no tensor before and between its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.fc(x)
        return None, 3, {"text": "t", "places": y.argmax(1)}, y


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_all_tensors_of_inference_are_compared(shift: float) -> None:
    job = Job(Several(), (torch.randn(4, 8),), mode="infer")
    captured = capture_job(job, default_rewrites())
    topology = Topology((Device("d", "cpu-core"),), (), ())
    with closing(RuntimeDevice("host", "cpu-core")) as device:
        plan = selftest_plan(captured.graph, topology, 0)
        placed = PlacedJob(PlacedModule(job, plan, captured, {"d": device}), [job])
        places, last = placed.step()
        assert last.shape == (4, 5)
        shifted = SimpleNamespace(**{name: getattr(placed, name) for name in ("placed", "parts", "whole")})
        shifted.job, shifted.step = job, lambda: (places, last + shift)
        group: Any = SimpleNamespace(gathered=lambda value: [value])
        reference = copy.deepcopy(job.module)
        assert compare_with_eager(cast(PlacedJob, shifted), reference, device, group).max_abs_error == pytest.approx(
            shift, abs=1e-5
        )


def test_a_report_stays_json() -> None:
    figures = Figures(0.1, 0.2, 0.1, max_abs_error=INF)
    report = RunReport(
        **vars(replace(figures, max_abs_error=NAN)), devices=("cpu:0",), steps=10, beside={"unsplit": figures}
    )
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert found["max_abs_error"] == "nan"
    assert found["beside"]["unsplit"]["max_abs_error"] == "inf"
