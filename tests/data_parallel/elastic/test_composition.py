"""An outer optimizer around what already runs on several devices: placed modules, DDP and FSDP2 inside a worker."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from data_parallel.elastic.simulated_workers import SimulatedWorkers
from processes import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dlplacer.data_parallel import OuterOptimizer, easgd

STEPS = 7


class Weights(nn.Module):
    """A loss whose gradient is k (w − target), for ranks that share a worker's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 2, 6))

    def forward(self, curvature: float) -> torch.Tensor:
        return curvature * ((self.weight - 1) ** 2).sum() / 2


def trained_in_groups(rank: int) -> dict[str, Any]:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("workers", "within"))
    within, between = mesh["within"], mesh["workers"].get_group()
    found = {}
    for name in ("ddp", "fsdp"):
        model: nn.Module = Weights()
        if name == "ddp":
            model = DistributedDataParallel(model, process_group=within.get_group(), broadcast_buffers=False)
        else:
            fully_shard(model, mesh=within)
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with OuterOptimizer(model, inner, easgd(0.2), sync_every=2, process_group=between) as outer:
            for _ in range(STEPS):
                inner.zero_grad()
                model(rank + 1.0).backward()
                inner.step()
        weight = next(model.parameters())
        whole = weight.full_tensor() if name == "fsdp" else weight
        found[name] = whole.detach().numpy()
        (centre,) = outer.centre_state_dict().values()
        found[f"{name} centre"] = centre.numpy()
    return found


@pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated")
def test_workers_of_several_ranks_by_ddp_and_by_fsdp() -> None:
    found = run_ranks(4, trained_in_groups)

    def gradient(worker: int, weights: np.ndarray) -> np.ndarray:
        # Ranks 2w and 2w + 1 average their gradients: (2w + 1 + 2w + 2) ÷ 2.
        return (2 * worker + 1.5) * (weights - 1)

    expected = SimulatedWorkers([np.linspace(-1, 2, 6)] * 2, gradient, momentum=0.9)
    expected.train(STEPS, 2, 1, 0.2)
    for rank, ours in enumerate(found):
        for name in ("ddp", "fsdp"):
            assert np.allclose(ours[name], expected.weights[rank // 2], atol=1e-5), name
        assert np.allclose(ours["ddp centre"], expected.centre, atol=1e-5)
        shard = expected.centre[3 * (rank % 2) : 3 * (rank % 2) + 3]
        assert np.allclose(ours["fsdp centre"], shard, atol=1e-5)
