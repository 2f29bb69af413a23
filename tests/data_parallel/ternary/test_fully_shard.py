"""Ternary gradients of fully_shard: exact where they must be, resumed, and a sixteenth of the bytes."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from data_parallel.ternary.runs import batch
from processes import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from dlplacer.data_parallel import TernaryState, ternary_reduce_scatter
from dlplacer.data_parallel.ternary.fully_shard import UnitReduceScatter, sharded_units

ROWS = 101
"""Rows of the coded weight: no number of ranks divides it, so that shards are padded."""


class Signed(nn.Module):
    """Gradients whose elements are ± the rank's scale in a coded weight, and anything in a small bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ROWS, 80))
        self.bias = nn.Parameter(torch.zeros(80))

    def forward(self, scale: float, use_weight: bool = True) -> torch.Tensor:
        total = (self.bias * torch.arange(80) * scale).sum()
        return total + scale * (signs(dist.get_rank()) * self.weight).sum() if use_weight else total


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Signed(), nn.Linear(80, 60)

    def forward(self, scale: float, use_weight: bool = True) -> torch.Tensor:
        return self.body(scale, use_weight) + scale * self.head(torch.ones(80)).sum()


def signs(rank: int) -> torch.Tensor:
    return torch.randint(0, 2, (ROWS, 80), generator=torch.Generator().manual_seed(rank)) * 2.0 - 1


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}


def sharded(model: nn.Module, state: TernaryState, parts: tuple[str, ...], **options: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in parts:
        fully_shard(model.get_submodule(part), mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    ternary_reduce_scatter(model, state)
    return model


def exact(rank: int, count: int, **options: Any) -> dict[str, bool]:
    tolerance = 2e-3 if options else 1e-6
    model = sharded(Model(), TernaryState(), ("body",), **options)
    model(1.0 + rank).backward()
    found, mean = whole(model), sum(range(1, count + 1)) / count
    expected = sum((1.0 + other) * signs(other) for other in range(count)) / count
    return {
        "weight": torch.allclose(found["body.weight"], expected, rtol=tolerance, atol=tolerance),
        "bias": torch.allclose(found["body.bias"], mean * torch.arange(80.0), rtol=tolerance),
        "head": torch.allclose(found["head.weight"], torch.full((60, 80), mean), rtol=tolerance),
    }


def trained(steps: int, at: int | None = None) -> tuple[float, float, str, Any]:
    """First and last loss, the parameters, and statistics; ended and taken up again at a step."""
    torch.manual_seed(0)
    state = TernaryState(seed=3)
    model = sharded(nn.Sequential(nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 5)), state, ("0",))
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.5), []
    for step in range(steps):
        if step == at:
            saved, state.steps = state.state_dict(), 77
            state.load_state_dict(saved)
        inputs, targets = batch(step, dist.get_rank())
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    flat = torch.cat([parameter.full_tensor().flatten() for parameter in model.parameters()])
    return losses[0], losses[-1], flat.detach().numpy().tobytes().hex()[:4000], state.stats()


def everything(rank: int, count: int) -> dict[str, Any]:
    dist.init_process_group("gloo")
    half = MixedPrecisionPolicy(reduce_dtype=torch.float16)
    return {
        "exact": exact(rank, count),
        "half": exact(rank, count, mp_policy=half),
        "trained": [trained(8), trained(8, at=5)],
        "units": golden(),
    }


def golden() -> list[Any]:
    """The parts of FSDP2 that are relied on: names, order and padded sizes of a unit's parameters."""
    model = Model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model.body, mesh=mesh)
    fully_shard(model, mesh=mesh)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [
        (type(module).__name__, isinstance(module, FSDPModule), names[id(parameter)], numel)
        for module, shards in sharded_units(model)
        for parameter, numel in shards
    ]


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    TernaryState()  # Compiles into the cache, from which all ranks read.
    found = run_ranks(3, partial(everything, count=3), 120)
    assert all(isinstance(one, dict) for one in found), found
    return found


def test_gradients_of_one_magnitude_arrive_exactly(ranks: Any) -> None:
    for rank in ranks:
        assert rank["exact"] == {"weight": True, "bias": True, "head": True}
        assert rank["half"] == {"weight": True, "bias": True, "head": True}


def test_training_goes_down_and_is_resumed(ranks: Any) -> None:
    for rank in ranks:
        (first, last, parameters, stats), (_, _, again, _) = rank["trained"]
        assert last < first
        assert parameters == again
        assert stats["steps"] == 8
        assert stats["transports"] == {"reduce-scatter": len(ranks)}
        assert set(stats["scalers"]) == {f"0.weight[{index}]" for index in range(len(ranks))}
        # 12,000 elements with 2 bits each, 300 with 32: 49,200 bytes ÷ (3,000 + 1,200), less what padding takes.
        assert 11.4 < stats["compression"] < 49_200 / 4_200


def test_what_is_relied_on_inside_of_fsdp2(ranks: Any) -> None:
    count = len(ranks)

    def padded(rows: int, columns: int) -> int:
        return -(-rows // count) * columns

    assert ranks[0]["units"] == [
        ("FSDPModel", True, "head.weight", padded(60, 80)),
        ("FSDPModel", True, "head.bias", padded(60, 1)),
        ("FSDPSigned", True, "body.weight", padded(ROWS, 80)),
        ("FSDPSigned", True, "body.bias", padded(80, 1)),
    ]
    assert all(hasattr(UnitReduceScatter, name) for name in ("allocate", "__call__"))
