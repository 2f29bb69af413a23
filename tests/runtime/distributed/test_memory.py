"""Steps over ranks leave nothing behind: neither objects nor memory."""

import gc
import resource
import sys
import threading
from pathlib import Path

import pytest
from processes import run_ranks
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.frontend import capture
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.models import mlp
from dlplacer.runtime.distributed import apply_ranks, replicated_plan
from dlplacer.runtime.distributed.messages.channels import RankChannels

pytestmark = [needs_two_cores, pytest.mark.timeout(240)]

WARM_UP = 10


def counts() -> dict[str, int]:
    """What a step might leave behind: objects with references, blocks of any Python object, threads."""
    gc.collect()
    return {"objects": len(gc.get_objects()), "blocks": sys.getallocatedblocks(), "threads": threading.active_count()}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def left_behind(steps: int, warm_up: int = WARM_UP):
    """[rank] → what some steps of 2 replicas × 2 ranks leave behind, counts and bytes."""
    plan = replicated_plan(random_plan(capture(mlp(batch_size=4)), 2, seed=1), 2, AlphaBeta(1e-4, 1e-9), 40_000)

    def work(rank: int):
        job = mlp(batch_size=4)
        placed = apply_ranks(job, plan, "rank0/cpu:0,rank1/cpu:1", replicas=2, timeout_s=60)

        def run(count: int) -> None:
            for _ in range(count):
                placed.zero_grad(set_to_none=True)
                placed.step(*job.args, *job.targets)

        run(warm_up)
        before, resident = counts(), resident_bytes()
        run(steps)
        found = {name: count - before[name] for name, count in counts().items()}
        return found, len(placed.group.failure._pending), resident_bytes() - resident

    return run_ranks(4, work, limit_s=200)


def test_no_object_stays_from_step_to_step() -> None:
    steps = 30
    for grown, pending, _ in left_behind(steps):
        assert grown["objects"] < steps / 4
        assert grown["blocks"] < 3 * steps
        assert grown["threads"] <= 0
        assert pending == 0


# The counts are fine enough: one future kept for every step is found.
def test_an_object_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, kept = RankChannels.begin, []

    def keeping(exchange: RankChannels) -> None:
        honest(exchange)
        kept.append(next(iter(exchange._slots.values()), None))

    monkeypatch.setattr(RankChannels, "begin", keeping)
    steps = 10
    for grown, _, _ in left_behind(steps):
        assert grown["objects"] >= steps


# The allocator's caches of all threads fill in the first thousand steps, by about a mebibyte in all.
@pytest.mark.slow
def test_a_thousand_steps_take_no_more_memory() -> None:
    for grown, pending, bytes_more in left_behind(1000, warm_up=200):
        assert grown["objects"] < 100
        assert grown["blocks"] < 1000
        assert pending == 0
        assert bytes_more < 8 * 2**20
