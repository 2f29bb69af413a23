"""Segments compiled by TorchInductor: their numbers and their steps, beside those of torch.compile on one device.

    python tests/benchmarks/compiled_segments.py [--jobs NAME…] [--timed NAME…]

Every job runs with ``segments="inductor"`` by a list schedule on two cores. The errors are the largest differences of
loss and gradients to plain PyTorch in float64, relative to the largest number of each tensor: of plain PyTorch in
float32, of torch.compile of the module, and of the placed step. A timed job also runs on one core, where its steps
alternate with those of torch.compile.
"""

import argparse
import copy
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from benchmarks.prediction_jobs import Attention, AttentionGru, TwoTowers
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import dlplacer as dp
from dlplacer import models
from dlplacer.core.plan import Plan
from dlplacer.measure.steps import EagerStep
from dlplacer.runtime.devices.open import open_devices

_ROUNDS = 9


def attention() -> dp.Job:
    torch.manual_seed(0)
    module, words = Attention(500, 128, 2, 4, 64), torch.randint(500, (2, 64))
    return dp.Job(module, (words,), (torch.randint(500, (128,)),), functional.cross_entropy)


def attention_gru() -> dp.Job:
    torch.manual_seed(0)
    texts = torch.randint(100, (4, 4)), torch.randint(100, (4, 4))
    return dp.Job(AttentionGru(100, 32), texts, (torch.randint(100, (16,)),), functional.cross_entropy)


def two_towers() -> dp.Job:
    torch.manual_seed(0)
    pairs = torch.randn(32, 64), torch.randn(32, 64)
    return dp.Job(TwoTowers(64, 128, 3), pairs, (torch.arange(32),), functional.cross_entropy)


JOBS: dict[str, Callable[[], dp.Job]] = {
    "attention": attention,
    "two_towers": two_towers,
    "attention_gru": attention_gru,
    "mlp": models.mlp,
    "branches": partial(models.branches, batch_size=2, image_size=32, count=3),
    "big_lstm": partial(models.big_lstm, batch_size=4, length=4, vocabulary=200, hidden=64, projection=32),
    "gnmt": partial(models.gnmt, batch_size=4, length=4, vocabulary=200, hidden=32, layers=2),
    "resnet50": partial(models.resnet50, batch_size=2, image_size=64),
    "googlenet": partial(models.googlenet, batch_size=2, image_size=64),
    "inception_v3": partial(models.inception_v3, batch_size=2, image_size=139),
}
Numbers = Mapping[str, torch.Tensor]


def main() -> None:
    """Parse, try every job, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", nargs="*", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--timed", nargs="*", choices=list(JOBS), default=["inception_v3", "attention"])
    arguments = parser.parse_args()
    print(f"{'job':<15}{'plain':>10}{'compiled':>10}{'placed':>10}   relative to float64", flush=True)
    for name in arguments.jobs:
        errors = differences(JOBS[name])
        print(f"{name:<15}" + "".join(f"{error:>10.1e}" for error in errors), flush=True)
    for name in arguments.timed:
        print(f"{name:<15}{timed(JOBS[name])}", flush=True)


def differences(build: Callable[[], dp.Job]) -> list[float]:
    """The errors of plain PyTorch, of torch.compile and of compiled segments."""
    (device,) = open_devices(["cpu:0"])
    with closing(device):

        def plain(job: dp.Job, *, compiled: bool = False) -> Numbers:
            torch.manual_seed(0)
            (loss,) = EagerStep([job], job.module, device, compiled=compiled).step()
            return numbers(loss, job.module)

        exact = plain(in_double(build()))
        found = [plain(build()), plain(build(), compiled=True)]
    job = build()
    with closing(dp.apply(job, planned(job, 2), ["cpu:0", "cpu:1"], segments="inductor")) as placed:
        found.append(numbers(placed.step(*job.args, *job.targets, **job.kwargs), placed))
    return [worst(each, exact) for each in found]


def timed(build: Callable[[], dp.Job]) -> str:
    """Median seconds of steps on one core."""
    jobs = [build() for _ in range(3)]
    placed = dp.apply(jobs[0], planned(jobs[0], 1), ["cpu:0"], segments="inductor")
    with closing(placed):
        device = placed.devices["d0"]
        steps: dict[str, Callable[[], object]] = {
            "placed": lambda: placed.step(*jobs[0].args, *jobs[0].targets, **jobs[0].kwargs),
            "compiled": EagerStep([jobs[1]], jobs[1].module, device, compiled=True).step,
            "plain": EagerStep([jobs[2]], jobs[2].module, device).step,
        }
        times: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(_ROUNDS + 3):
            for name, step in steps.items():
                jobs[0].module.zero_grad(set_to_none=True)
                begin = time.perf_counter()
                step()
                if number >= 3:
                    times[name].append(time.perf_counter() - begin)
    ratios = sorted(mine / theirs for mine, theirs in zip(times["placed"], times["compiled"], strict=True))
    medians = ", ".join(f"{name} {1e3 * median(found):.1f} ms" for name, found in times.items())
    return f"{medians}; placed ÷ compiled {median(ratios):.3f} ({ratios[0]:.3f}–{ratios[-1]:.3f})"


def planned(job: dp.Job, count: int) -> Plan:
    graph = dp.capture(job)
    graph = replace(graph, ops=tuple(replace(op, time_s=1e-4 if op.dtype else 0.0) for op in graph.ops))
    devices = tuple(dp.Device(f"d{number}", "cpu-core") for number in range(count))
    links = (dp.Link("d0", "d1", 1e10, 1e-5),) if count > 1 else ()
    return dp.place(graph, dp.Topology(devices, (), links), method="heft").plan


def in_double(job: dp.Job) -> dp.Job:
    def widened(leaf: torch.Tensor) -> torch.Tensor:
        return leaf.double() if leaf.is_floating_point() else leaf

    args, targets = pytree.tree_map_only(torch.Tensor, widened, (job.args, job.targets))
    loss = copy.deepcopy(job.loss).double() if isinstance(job.loss, nn.Module) else job.loss
    return replace(job, module=job.module.double(), args=args, targets=targets, loss=loss)


def numbers(loss: torch.Tensor, module: nn.Module) -> Numbers:
    gradients = {name: one.grad for name, one in module.named_parameters() if one.grad is not None}
    return {name: tensor.detach().double().clone() for name, tensor in {"loss": loss, **gradients}.items()}


def worst(found: Numbers, exact: Numbers) -> float:
    assert found.keys() == exact.keys()
    return max(float((found[name] - one).abs().max() / one.abs().max().clamp_min(1e-12)) for name, one in exact.items())


if __name__ == "__main__":
    main()
