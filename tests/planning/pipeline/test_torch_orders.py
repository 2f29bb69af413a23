"""Our orders beside those of torch.distributed.pipelining, and our files as torch reads them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from dlplacer.planning.pipeline.schedules import SCHEDULES, order_of, write_csv

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
MICRO_BATCHES = 4


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

    per_rank = 1 + (schedule == "interleaved")
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

    theirs = get_schedule_ops(torch_name, ranks, 2 * ranks, num_stages_per_rank=(1 + (schedule == "interleaved")))
    ours = order_of(schedule, ranks, 2 * ranks)
    # torch's list for 1F1B counts the last rank's forward passes from 1.
    compared = slice(None, -1 if schedule == "1f1b" else None)
    for mine, other in zip(ours[compared], theirs[compared], strict=True):
        computed = [str(action) for action in other if action is not None and action.is_compute_op]
        assert [str(action) for action in mine] == [text for text in computed if "REDUCE" not in text]
