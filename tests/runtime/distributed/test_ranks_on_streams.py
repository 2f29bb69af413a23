"""Processes whose devices have streams, as GPUs have: over gloo, with tensors in the host's memory."""

from dataclasses import replace

import pytest
import torch
from processes import run_ranks
from replicas import farthest, part_of, trained
from runtime.distributed.test_training import plan_for
from runtime.host_streams import HostCudaDevice, HostStreams
from runtime.random_plans import needs_two_cores

from dlplacer.models import mlp
from dlplacer.runtime.devices.open import KINDS
from dlplacer.runtime.distributed import apply_ranks
from dlplacer.runtime.executor.backends import BACKENDS, CudaGraphs

pytestmark = [needs_two_cores, pytest.mark.timeout(120)]
TOLERANCE = 1e-6
STEPS = 5


def simulated() -> HostStreams:
    """Have this process, which is a rank of its own, see two GPUs; returns what is enqueued on them."""
    made = HostStreams()

    def opened(index: int, part: int | None = None, copies: str = "free") -> HostCudaDevice:
        return HostCudaDevice(index, made, part, copies)

    KINDS["cuda"] = replace(KINDS["cuda"], open=opened, collectives="gloo", count=lambda: 2)
    BACKENDS["cuda_graph"] = lambda: CudaGraphs(least=2)
    return made


# A GPU for each of two processes, or for each of two replicas with logical devices.
@pytest.mark.parametrize(
    ("names", "replicas", "mode"),
    [
        ("rank0/cuda:0,rank1/cuda:1", 1, "eager"),
        ("rank0/cuda:0,rank1/cuda:1", 1, "cuda_graph"),
        ("rank0/cuda:0/0,rank0/cuda:0/1", 2, "eager"),
    ],
    ids=["a GPU each", "a GPU each, with graphs", "logical devices"],
)
def test_training_equals_one_process(names: str, replicas: int, mode: str) -> None:
    plan = plan_for(mlp(batch_size=4), replicas)

    def work(rank: int):
        streams = simulated()
        job = part_of(mlp(batch_size=4 * replicas), rank if replicas > 1 else 0, replicas)
        placed = apply_ranks(job, plan, names, replicas=replicas, timeout_s=30, segments=mode)
        optimizer = torch.optim.SGD(placed.parameters(), lr=0.1)
        losses = []
        for _ in range(STEPS):
            placed.zero_grad()
            losses.append(float(placed.step(*job.args, *job.targets)))
            optimizer.step()
        state = placed.gathered_state_dict()
        placed.close()
        return losses, state, set(streams.log)

    losses, expected = trained([mlp(batch_size=4 * replicas)], steps=STEPS)
    for theirs, state, enqueued in run_ranks(2, work):
        assert theirs == pytest.approx(losses, abs=TOLERANCE)
        assert farthest(state, expected) < TOLERANCE
        assert {"record", "wait"} <= enqueued
        assert ("replay" in enqueued) == (mode == "cuda_graph")
