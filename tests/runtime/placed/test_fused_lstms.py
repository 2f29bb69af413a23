"""LSTMs as the kernel that plain PyTorch runs on CPUs: the same calls, and the same numbers."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from runtime.random_plans import needs_two_cores, random_plan
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import dlplacer as dp
from dlplacer.core.graph import OpGraph
from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.frontend.torch.tracing.fused_lstm import BACKWARD, FORWARD, FUSED_LSTM
from dlplacer.runtime.profile.op_times import Times, timed_capture

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
    "batch first": partial(Reader, batch_first=True),
    "both directions": partial(Reader, bidirectional=True),
    "layers both ways": partial(Reader, num_layers=2, bidirectional=True, batch_first=True),
    "three layers": partial(Reader, num_layers=3),
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
    return [op.id for op in graph.ops if op.attrs.get("target") in (str(FORWARD), str(BACKWARD))]


class Calls(TorchDispatchMode):
    """Arguments of the kernel's calls that are no tensors, and shapes of those that are."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (FORWARD, BACKWARD):
            # The last argument of a backward is the workspace, of which the capture only knows about how large it is.
            self.seen.append((func, [_told(entry) for entry in args[: -1 if func is BACKWARD else None]]))
        return func(*args, **(kwargs or {}))


def _settings(args: Sequence[Any]) -> list[Any]:
    return [entry for entry in args if isinstance(entry, (bool, int)) or entry == []]


def _told(entry: Any) -> Any:
    return tuple(entry.shape) if isinstance(entry, torch.Tensor) else entry


def step(job: Job, module: nn.Module) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loss and all gradients of a step in plain PyTorch."""
    loss = job.loss(module(*job.args), *job.targets)  # type: ignore[misc]
    loss.backward()
    return loss, [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("form", FORMS)
def test_a_step_makes_the_calls_of_plain_pytorch(form: str) -> None:
    job, captured = training(form)
    calls_of = (code.instructions[0] for code in captured.executable.of_role("call"))
    traced = [(call.target, call.args) for call in calls_of if call.target in (FORWARD, BACKWARD)]
    with Calls() as calls:
        step(job, copy.deepcopy(job.module))
    settings, expected = ([(target, _settings(args)) for target, args in each] for each in (traced, calls.seen))
    assert sorted(settings, key=str) == sorted(expected, key=str)
    assert len(settings) == len(calls.seen) > 0


@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_those_of_plain_pytorch(form: str) -> None:
    job, plain = job_of(form), copy.deepcopy(training(form)[0].module)
    placed = dp.apply(job, random_plan(training(form)[1].graph, 1), devices=["cpu"])
    try:
        for _ in range(2):
            plain.zero_grad()
            loss, gradients = step(job, plain)
            placed.zero_grad()
            ours = placed(*job.args, *job.targets)
            ours.backward()
            assert torch.equal(ours, loss)
            for parameter, expected in zip(placed.parameters(), gradients, strict=True):
                assert parameter.grad is not None
                torch.testing.assert_close(parameter.grad, expected, rtol=1e-6, atol=1e-7)
    finally:
        placed.close()


@pytest.mark.parametrize("form", FORMS)
def test_inference_gives_the_same_numbers(form: str) -> None:
    job = job_of(form, "infer")
    captured = fused(job)
    assert of_kernel(captured.graph)
    placed = dp.apply(job, random_plan(captured.graph, 1), devices=["cpu"])
    try:
        with torch.no_grad():
            # The head's product is another call than that of plain PyTorch, with a rounding of its own.
            torch.testing.assert_close(placed(*job.args), job.module(*job.args), rtol=1e-6, atol=1e-6)
    finally:
        placed.close()


@needs_two_cores
def test_a_forward_and_its_backward_share_a_device_and_a_workspace() -> None:
    job = job_of("layers both ways")
    plain = copy.deepcopy(job.module)
    plan = random_plan(fused(job).graph, 2, seed=3)
    pairs: dict[str, set[str]] = {}
    for op in of_kernel(plan.graph):
        pairs.setdefault(str(plan.graph.op(op).colocate), set()).add(plan.placement[op])
    # Two layers of two directions.
    assert [len(where) for where in pairs.values()] == [1, 1, 1, 1]
    assert len(set.union(*pairs.values())) == 2
    loss, gradients = step(job, plain)
    placed = dp.apply(job, plan, devices=["cpu:0", "cpu:1"])
    try:
        ours = placed(*job.args, *job.targets)
        ours.backward()
        torch.testing.assert_close(ours, loss)
        for parameter, expected in zip(placed.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, expected)
    finally:
        placed.close()


def test_a_placed_step_runs_in_the_other_mode_and_at_other_lengths() -> None:
    job = job_of("both directions")
    placed = dp.apply(job, random_plan(fused(job).graph, 1), devices=["cpu"])
    try:
        x = torch.randn(4, 2, 6)
        placed.eval()
        with torch.no_grad():
            # Rounding as above: on some processors the head's two calls differ in the last bit.
            plain = copy.deepcopy(job.module).eval()(x)
            torch.testing.assert_close(placed(x), plain, rtol=1e-6, atol=1e-6)
    finally:
        placed.close()


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


def test_without_the_rewrite_no_lstm_is_fused() -> None:
    for job in (job_of("one layer"), job_of("one layer", "infer")):
        assert not of_kernel(capture_job(job, default_rewrites()).graph)


# Sequences, steps and width; what the kernel takes is rounded up to pages.
@pytest.mark.parametrize(("batch", "steps", "width"), [(1, 1, 1), (8, 8, 256), (8, 16, 256), (16, 8, 256), (2, 4, 64)])
def test_workspaces_count_about_as_much_as_they_take(batch: int, steps: int, width: int) -> None:
    job = Job(nn.LSTM(3, width), (torch.randn(steps, batch, 3),), (), lambda out: out[0].sum())
    (forward, _) = of_kernel(fused(job).graph)
    counted = fused(job).graph.op(forward).outputs[3].bytes
    weights = [parameter.detach() for parameter in job.module.parameters()]
    begin = torch.zeros(1, batch, width)
    with torch.enable_grad():
        taken = FORWARD(job.args[0], *weights, begin, begin, False, [], 2, width, 1, True, False, False, True)[
            3
        ].numel()
    assert counted == pytest.approx(taken, rel=0.1, abs=5 * 4096)


# 2 FLOPs, 4 gates of 5 from 6 + 5 values, 7 steps of 3 sequences; the backward pass twice that.
def test_flops_are_those_of_the_gates() -> None:
    graph = fused(job_of("one layer")).graph
    forward, backward = (graph.op(op) for op in of_kernel(graph))
    assert forward.flops == 2 * 4 * 5 * (6 + 5) * 7 * 3
    assert backward.flops == 2 * forward.flops


@pytest.mark.parametrize(("fused_s", "wanted"), [(1.0, True), (3.0, False)])
def test_a_profile_keeps_what_takes_less(fused_s: float, wanted: bool) -> None:
    job = job_of("one layer")

    def times(captured: Captured) -> Times:
        seconds = fused_s if of_kernel(captured.graph) else 2.0
        return {"cpu-core": {op.id: seconds / len(captured.graph.ops) for op in captured.graph.ops}}

    captures: list[Sequence[str]] = []

    def capture(more: Sequence[str]) -> Captured:
        captures.append(more)
        return capture_job(job, [*default_rewrites(), *more])

    captured, found = timed_capture(job, capture, times, True)
    assert captures == [(), (FUSED_LSTM,)]
    assert bool(of_kernel(captured.graph)) == wanted
    assert sum(found["cpu-core"].values()) == pytest.approx(min(fused_s, 2.0))
