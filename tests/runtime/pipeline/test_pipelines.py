"""Pipelines under torch.distributed.pipelining: loss and gradients of plain PyTorch, torch's own orders and files."""

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.frontend.torch.job import Job
from dlplacer.models import big_lstm, gnmt, mlp
from dlplacer.planning.pipeline.action import write_csv
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
from dlplacer.planning.pipeline.schedules import SCHEDULES, STAGES_PER_RANK, order_of
from dlplacer.runtime.distributed.launch import launch
from dlplacer.runtime.pipeline.forward_graph import forward_of, op_graph
from dlplacer.runtime.pipeline.rank_adapter import PipelineRank
from dlplacer.runtime.pipeline.stage_modules import stage_modules
from dlplacer.runtime.pipeline.stage_times import op_times, stage_times

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
TWO = Topology((Device("a", "core"), Device("b", "core")), (), (Link("a", "b", 1e9),))
MICRO_BATCHES = 4
SIZES = {"length": 3, "vocabulary": 20, "batch_size": 8}


def small_gnmt() -> Job:
    return gnmt(**SIZES, hidden=8, layers=2)


def small_big_lstm() -> Job:
    return big_lstm(**SIZES, hidden=16, projection=8)


class Skipping(nn.Module):
    """The embedding of the input, its mask and the first layer's output are read at the very end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(5))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        mask = values > 0
        first = states = torch.tanh(self.layers[0](values))
        for layer in self.layers[1:]:
            states = torch.tanh(layer(states))
        joined: torch.Tensor = torch.where(mask, states + first, first * values)
        return joined


def skipping() -> Job:
    values, wanted = torch.randn(8, 6), torch.randn(8, 6)
    return Job(Skipping(), (values,), (wanted,), functional.mse_loss)


def cut(job: Job, schedule: str) -> tuple[Any, Any, Any]:
    """Forward pass, stage modules and order, for two ranks; times are those of a model in which all ops are equal."""
    forward = forward_of(job, MICRO_BATCHES)
    equal = {node.name: (1e-3, 2e-3) for node in forward.nodes}
    graph = op_graph(forward, equal, "core")
    at = {MICRO_BATCHES: graph}
    plan = plan_pipeline(graph, TWO, stages=2, micro_batches=MICRO_BATCHES, schedule=schedule, at_micro_batches=at)
    stages = 2 * STAGES_PER_RANK[schedule]
    return forward, stage_modules(forward, plan.stage_of, stages), plan.order


def difference(build: Any, schedule: str) -> float:
    """Largest difference of the loss and of gradients on this rank."""
    torch.manual_seed(0)
    job = build()
    plain = copy.deepcopy(job.module)
    expected = job.loss(plain(*job.args), *job.targets)
    expected.backward()
    forward, parts, order = cut(job, schedule)
    pipeline = PipelineRank(forward, parts, order, torch.device("cpu"))
    worst = 0.0
    for _ in range(2):
        pipeline.zero_grad()
        loss = pipeline.step()
        gradients = dict(plain.named_parameters())
        worst = max(worst, *(float((g - gradients[name].grad).abs().max()) for name, g in pipeline.gradients().items()))
        if loss is not None:
            worst = max(worst, float((loss - expected).abs()))
    assert {id(p) for part in pipeline.own.values() for p in part.module.parameters()} <= set(
        map(id, job.module.parameters())
    )
    return worst


def all_differences(_rank: int) -> dict[str, float]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    found = {}
    for build, schedules in ((small_gnmt, SCHEDULES), (small_big_lstm, ("1f1b",)), (skipping, SCHEDULES)):
        for schedule in schedules:
            found[f"{build.__name__} {schedule}"] = difference(build, schedule)
    dist.destroy_process_group()
    return found


def test_loss_and_gradients_are_those_of_plain_pytorch() -> None:
    outcomes = launch(2, all_differences, timeout_s=200)
    for outcome in outcomes:
        assert outcome.error is None, outcome.error
        assert len(outcome.result) == 9
        for name, worst in outcome.result.items():
            assert worst < 1e-6, name


def test_live_values_pass_through_the_stages_between() -> None:
    job = skipping()
    forward = forward_of(job, 2)
    names = [node.name for node in forward.nodes]
    parts = stage_modules(forward, {name: min(2, at // 4) for at, name in enumerate(names)}, 3)
    assert parts[1].receives == ("gt", "tanh", "linear_1")
    assert parts[1].sends[:2] == ("gt", "tanh")
    assert [example.dtype for example in parts[1].examples_out][:2] == [torch.bool, torch.float32]
    values: tuple[torch.Tensor, ...] = ()
    inputs = {f"input_{forward.inputs[0]}": job.args[0]}
    for part in parts[:-1]:
        values = part.module(*values, **inputs)
    assert torch.allclose(parts[-1].module(*values, **inputs), job.module(*job.args))


def test_a_stage_may_not_read_from_a_later_one() -> None:
    forward = forward_of(skipping(), 2)
    backwards = {node.name: int(at == 0) for at, node in enumerate(forward.nodes)}
    with pytest.raises(InputError, match="of stage 0 reads from stage 1; cut the model elsewhere"):
        stage_modules(forward, backwards, 2)


def test_a_tied_weight_may_not_be_in_two_stages() -> None:
    forward = forward_of(mlp(batch_size=4, depth=2, tied=True), 2)
    halves = {node.name: int(node.name in ("linear_2", "relu_2", "linear_3")) for node in forward.nodes}
    with pytest.raises(
        InputError, match=r"weight 'hidden\.\d\.weight' is read in stages 0 and 1; all that reads a tied"
    ):
        stage_modules(forward, halves, 2)
    graph = op_graph(forward, {}, "core")
    plan = plan_pipeline(graph, TWO, stages=2, micro_batches=1, at_micro_batches={1: graph})
    assert plan.stage_of["linear_1"] == plan.stage_of["linear_2"]
    assert len(stage_modules(forward, plan.stage_of, 2)) == 2


@pytest.mark.parametrize(
    ("job", "parts", "message"),
    [
        (mlp(batch_size=4), 3, r"an argument of shape \[4, 64\] cannot be cut into 3 equal micro-batches"),
        (
            Job(nn.Linear(2, 2), (torch.ones(2, 2),), mode="infer"),
            2,
            "a pipeline runs jobs of mode 'train' with a loss",
        ),
        (Job(nn.Linear(2, 2), (torch.ones(2, 2),), loss=torch.sum, optimizer="sgd"), 2, "without keyword arguments"),
    ],
)
def test_jobs_that_no_pipeline_runs(job: Job, parts: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        forward_of(job, parts)


def test_ops_and_stages_are_timed() -> None:
    job = mlp(batch_size=8)
    forward = forward_of(job, 2)
    times = op_times(forward, repeats=2, warm_up=1)
    assert set(times) == {node.name for node in forward.nodes} | {"loss"}
    assert all(ahead > 0 and behind > 0 for ahead, behind in times.values())
    assert all(parameter.grad is not None for parameter in job.module.parameters())
    half = {node.name: int(at > 2) for at, node in enumerate(forward.nodes)}
    part = stage_modules(forward, half, 2)[1]
    received = [torch.randn(example.shape) for example in part.examples_in]
    found = stage_times(part, received, {}, lambda output: functional.cross_entropy(output, job.targets[0][:4]), True)
    assert found.forward_s > 0
    assert found.backward_s == pytest.approx(found.of("I") + found.of("W"))


@pytest.fixture
def fake_group() -> Iterator[None]:
    """Rank 0 of 2, without processes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.usefixtures("fake_group")
def test_torch_reads_our_file_and_finds_no_deadlock(schedule: str, tmp_path: Path) -> None:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import (
        _add_send_recv,
        _PipelineScheduleRuntime,
        _simulate_comms_compute,
    )

    per_rank = STAGES_PER_RANK[schedule]
    order = order_of(schedule, 2, MICRO_BATCHES)
    path = tmp_path / "order.csv"
    path.write_text(write_csv(order), encoding="utf-8")
    stages = [PipelineStage(nn.Linear(2, 2), 2 * at, 2 * per_rank, torch.device("cpu")) for at in range(per_rank)]
    runtime: Any = _PipelineScheduleRuntime
    loaded = runtime(stages, MICRO_BATCHES, loss_fn=functional.mse_loss)
    loaded._load_csv(str(path))
    assert [[str(action) for action in loaded.pipeline_order[rank]] for rank in range(2)] == [
        [str(action) for action in actions] for actions in order
    ]
    actions = {rank: list(entries) for rank, entries in loaded.pipeline_order.items()}
    complete = _add_send_recv(actions, lambda stage: stage % 2, 2 * per_rank)
    simulated = _simulate_comms_compute(complete, lambda stage: stage % 2, 2 * per_rank)
    assert {rank: sum(slot is not None for slot in row) for rank, row in simulated.items()} == {
        rank: len(row) for rank, row in complete.items()
    }


@pytest.mark.parametrize(
    ("schedule", "torch_name"),
    [("gpipe", "GPipe"), ("1f1b", "1F1B"), ("interleaved", "Interleaved1F1B")],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_our_orders_are_torchs(schedule: str, torch_name: str, ranks: int) -> None:
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    theirs = get_schedule_ops(torch_name, ranks, 2 * ranks, num_stages_per_rank=STAGES_PER_RANK[schedule])
    ours = order_of(schedule, ranks, 2 * ranks)
    # torch's list for 1F1B counts the last rank's forward passes from 1.
    compared = slice(None, -1 if schedule == "1f1b" else None)
    for mine, other in zip(ours[compared], theirs[compared], strict=True):
        computed = [str(action) for action in other if action is not None and action.is_compute_op]
        assert [str(action) for action in mine] == [text for text in computed if "REDUCE" not in text]
