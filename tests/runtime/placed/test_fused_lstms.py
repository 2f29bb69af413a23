"""LSTMs as the kernel that plain PyTorch runs on CPUs: the same calls, and the same numbers."""

import copy
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from runtime.random_plans import needs_two_cores, placed_at_random, require_same_step
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from dlplacer.core.graph import OpGraph
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.frontend.torch.tracing.kernels import FUSED_LSTM, LSTM_BACKWARD, LSTM_FORWARD
from dlplacer.runtime.devices import open_devices
from dlplacer.runtime.profile.op_times import made_by

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")
REWRITES = [*default_rewrites(), FUSED_LSTM]


class Reader(nn.Module):
    """Recurrent layers, begun with zeros or with states of their own, and a head that reads every step."""

    def __init__(self, begins: bool = False, kind: type[nn.RNNBase] = nn.LSTM, **options: Any) -> None:
        super().__init__()
        self.layers = kind(6, 5, **options)
        directions = 1 + self.layers.bidirectional
        shape = (directions * self.layers.num_layers, 3, 5)
        self.begin = nn.ParameterList([torch.randn(shape), torch.randn(shape)] if begins else [])
        self.head = nn.Linear((options.get("proj_size") or 5) * directions, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, (hidden, _) = self.layers(x, tuple(self.begin) or None)
        logits: torch.Tensor = self.head(states) + hidden.sum()
        return logits.flatten(0, -2)


FORMS: Mapping[str, Callable[[], Reader]] = {
    "one layer": Reader,
    "both directions": partial(Reader, bidirectional=True),
    "layers both ways": partial(Reader, num_layers=2, bidirectional=True, batch_first=True),
    "no biases": partial(Reader, bias=False, num_layers=2),
    "given states": partial(Reader, begins=True, num_layers=2, bidirectional=True),
}


def job_of(form: str, mode: str = "train", **more: Any) -> Job:
    torch.manual_seed(0)
    module = FORMS[form]()
    x = torch.randn((3, 7, 6) if module.layers.batch_first else (7, 3, 6))
    if mode == "infer":
        return Job(module.eval(), (x,), mode="infer", **more)
    return Job(module, (x,), (torch.randint(4, (21,)),), functional.cross_entropy, **more)


def fused(job: Job) -> Captured:
    return capture_job(job, REWRITES)


@cache
def training(form: str) -> tuple[Job, Captured]:
    """A job and its capture; the job's module is not to be placed or trained."""
    job = job_of(form)
    return job, fused(job)


def of_kernel(graph: OpGraph) -> list[str]:
    return [op.id for op in graph.ops if op.attrs.get("target") in (str(LSTM_FORWARD), str(LSTM_BACKWARD))]


@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_those_of_plain_pytorch(form: str) -> None:
    job, plain = job_of(form), copy.deepcopy(training(form)[0].module)
    with placed_at_random(job, 1, graph=training(form)[1].graph) as placed:
        assert of_kernel(placed.plan.graph)
        for _ in range(2):
            require_same_step(placed, job, plain, joint=False)


@needs_two_cores
def test_a_forward_and_its_backward_share_a_device_and_a_workspace() -> None:
    job = job_of("layers both ways")
    plain = copy.deepcopy(job.module)
    with placed_at_random(job, 2, seed=3, graph=fused(job).graph) as placed:
        plan = placed.plan
        pairs: dict[str, set[str]] = {}
        for op in of_kernel(plan.graph):
            pairs.setdefault(str(plan.graph.op(op).colocate), set()).add(plan.placement[op])
        # Two layers of two directions.
        assert [len(where) for where in pairs.values()] == [1, 1, 1, 1]
        assert len(set.union(*pairs.values())) == 2
        require_same_step(placed, job, plain, joint=False)


@pytest.mark.parametrize(
    "job",
    [
        Job(Reader(proj_size=2), (torch.randn(7, 3, 6),), mode="infer"),
        Job(Reader().double(), (torch.randn(7, 3, 6, dtype=torch.float64),), mode="infer"),
        replace(job_of("one layer"), autocast="bfloat16"),
    ],
    ids=["projections", "float64", "autocast"],
)
def test_an_lstm_that_plain_pytorch_does_not_run_so_stays(job: Job) -> None:
    assert not of_kernel(fused(job).graph)


class Called(TorchDispatchMode):
    """Remembers which kernels run."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: set[object] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kernels.add(func)
        return func(*args, **(kwargs or {}))


def test_a_backward_never_runs_with_a_made_up_workspace() -> None:
    step = training("one layer")[1]
    layouts = step.executable.layouts
    (device,) = open_devices(["cpu:0"])
    with closing(device):
        for op in of_kernel(step.graph):
            values = [name for name, producer in step.executable.producer.items() if producer == op and name in layouts]
            with Called() as called:
                made = made_by(step, op, values, device)
            assert LSTM_BACKWARD not in called.kernels
            same = [name for name, tensor in zip(values, made, strict=True) if tensor.shape == layouts[name][0]]
            # The true size of a workspace is known to the kernel alone.
            assert len(same) >= len(values) - (LSTM_FORWARD in called.kernels)
