"""Predicted against measured: the speedup of DistributedDataParallel on two gloo ranks, one core each.

The prediction knows steps of one process (plain, and in DDP without partner: when buckets are ready) and a link
measurement (all-reduces of several sizes: seconds, and how busy they keep the core), both taken on both cores at the
same time, as the cores share caches and memory. Training together is measured in the same rounds, so that all see the
same machine.

Run: ``python tests/benchmarks/ddp_prediction.py [--rounds N] [--json]``, on a machine with two idle cores.
"""

import argparse
import copy
import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.ddp_model import DdpProfile, ddp_step_s, speedup

from dlplacer.frontend import Job
from dlplacer.machines.usable_cores import usable_cores
from dlplacer.models import branches, inception_v3, mlp
from dlplacer.runtime.devices.allocator import keep_heap
from dlplacer.runtime.distributed.launch import launch, results_of
from dlplacer.runtime.distributed.measured_network import fitted_line

RANKS = 2
WARMUP = 6
REPEATS = 3
SIZES_BYTES = (2**12, 2**16, 2**18, 2**20, 2**22, 2**23, 2**24, 25 * 2**20)
MODELS: dict[str, Callable[[], Job]] = {
    "mlp, 6 x 1024, batch 128": lambda: mlp(batch_size=128, features=256, width=1024, depth=5),
    "branches, 3 x 48, batch 32": lambda: branches(batch_size=32, image_size=48),
    "Inception-V3, 139 px, batch 4": lambda: inception_v3(batch_size=4, image_size=139),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", choices=list(MODELS), action="append")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if len(usable_cores()) < RANKS:
        raise SystemExit("two ranks with a core each need two cores")
    names = ("plain", "DDP", "predicted")
    if not arguments.json:
        print(f"{'model':32} {'MB':>6} {' '.join(f'{name:>10}' for name in names)}  speedup predicted   error")
    for name in arguments.model or MODELS:
        found = results_of(launch(RANKS, lambda rank, name=name: measured(rank, MODELS[name](), arguments.rounds), 900))
        row = {"model": name, **compared(found)}
        if arguments.json:
            print(json.dumps(row), flush=True)
        else:
            show(row)


def show(row: dict[str, Any]) -> None:
    times = " ".join(f"{row[name] * 1e3:7.1f} ms" for name in ("plain_s", "ddp_s", "predicted_s"))
    print(
        f"{row['model']:32} {row['gradient_bytes'] / 1e6:6.1f} {times} {row['speedup']:7.3f}x "
        f"{row['predicted_speedup']:8.3f}x {100 * row['error']:5.1f} %"
    )
    line = f"{row['latency_s'] * 1e6:.0f} us + {row['s_per_byte'] * 1e9:.2f} s/GB"
    print(
        f"    {row['buckets']} buckets; all-reduce {line}, core busy for {100 * row['cpu_share']:.0f} % of it",
        flush=True,
    )


def measured(rank: int, job: Job, rounds: int) -> dict[str, Any]:
    """What one rank measures, in rounds: a plain step, DDP without partner, DDP with the other rank, all-reduces."""
    os.sched_setaffinity(0, {usable_cores()[rank]})
    warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
    keep_heap()
    dist.init_process_group("gloo")
    alone = [dist.new_group([member]) for member in range(RANKS)][rank]
    marks: list[tuple[float, int]] = []
    lonely = DistributedDataParallel(copy.deepcopy(job.module), process_group=alone, broadcast_buffers=False)
    lonely.register_comm_hook(marks, noted)
    together = DistributedDataParallel(copy.deepcopy(job.module), broadcast_buffers=False)
    steps = {
        name: trainer(job, module) for name, module in (("plain", job.module), ("alone", lonely), ("ddp", together))
    }
    for _ in range(WARMUP):
        for step in steps.values():
            step()
    gc.collect()
    times: dict[str, list[float]] = {name: [] for name in steps}
    ready: list[list[float]] = []
    walls: dict[int, list[float]] = {size: [] for size in SIZES_BYTES}
    cpus: dict[int, list[float]] = {size: [] for size in SIZES_BYTES}
    for _ in range(rounds):
        for name, step in steps.items():
            marks.clear()
            dist.barrier()
            begin = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - begin)
            if name == "alone":
                ready.append([at - begin for at, _ in marks])
                sizes = [size for _, size in marks]
        all_reduces(walls, cpus)
    profile = DdpProfile(typical(times["alone"]), tuple(sorted(map(typical, zip(*ready, strict=True)))), tuple(sizes))
    return {
        "plain_s": typical(times["plain"]),
        "ddp_s": typical(times["ddp"]),
        "profile": profile,
        "line": {size: typical(values) for size, values in walls.items()},
        "cpu": {size: typical(values) for size, values in cpus.items()},
    }


def typical(values: Sequence[float]) -> float:
    """The lower quartile: what interrupts a step only ever adds time."""
    return quantiles(values, n=4, method="inclusive")[0]


def trainer(job: Job, module: torch.nn.Module) -> Callable[[], None]:
    """A step of plain SGD."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        job.loss(module(*job.args), *job.targets).backward()
        optimizer.step()

    return step


def noted(marks: list[tuple[float, int]], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that writes down when a bucket is ready, and exchanges nothing."""
    flat = bucket.buffer()
    marks.append((time.perf_counter(), flat.numel() * flat.element_size()))
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(flat)
    return future


def all_reduces(walls: dict[int, list[float]], cpus: dict[int, list[float]]) -> None:
    """Seconds of all-reduces, and of the time that this process keeps its core busy for them, by bytes."""
    for size in SIZES_BYTES:
        flat = torch.zeros(size // 4)
        dist.all_reduce(flat)
        dist.barrier()
        begin, busy = time.perf_counter(), time.process_time()
        for _ in range(REPEATS):
            dist.all_reduce(flat)
        walls[size].append((time.perf_counter() - begin) / REPEATS)
        cpus[size].append((time.process_time() - busy) / REPEATS)


def compared(found: list[dict[str, Any]]) -> dict[str, float]:
    """Prediction and measurement of one model, from what both ranks found."""
    line = fitted_line({size: max(rank["line"][size] for rank in found) for size in SIZES_BYTES})
    large = [size for size in SIZES_BYTES if size >= 2**20]
    share = min(1.0, fmean(rank["cpu"][size] / rank["line"][size] for rank in found for size in large))
    predicted_s = max(ddp_step_s(rank["profile"], line, share) for rank in found)
    plain_s = fmean(rank["plain_s"] for rank in found)
    ddp_s = fmean(rank["ddp_s"] for rank in found)
    predicted, real = speedup(plain_s, RANKS, predicted_s), speedup(plain_s, RANKS, ddp_s)
    return {
        "gradient_bytes": sum(found[0]["profile"].sizes_bytes),
        "buckets": len(found[0]["profile"].sizes_bytes),
        "plain_s": plain_s,
        "alone_s": fmean(rank["profile"].step_s for rank in found),
        "ddp_s": ddp_s,
        "predicted_s": predicted_s,
        "speedup": real,
        "predicted_speedup": predicted,
        "error": abs(predicted - real) / real,
        "latency_s": line.latency_s,
        "s_per_byte": line.s_per_byte,
        "cpu_share": share,
    }


if __name__ == "__main__":
    main()
