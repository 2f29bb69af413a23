"""Planned message groups on an emulated channel: predicted against measured, and against DDP's own buckets.

Every model trains under DistributedDataParallel; a hook on its messages hands each bucket to a channel that takes a
start-up time and a time per byte, one bucket after another, while the backward pass goes on. The start-up time is 1/40
of the backward pass, and the whole gradient takes as long as the backward pass. Rounds alternate between a plain
backward pass, whose gradients are timed as they get ready, and all policies.

Run: ``python tests/benchmarks/groups_on_channel.py [--rounds N] [--json]``, on a machine with an idle core.
"""

import argparse
import copy
import json
import os
import queue
import threading
import time
from collections.abc import Callable
from statistics import geometric_mean, median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dlplacer.data_parallel.groups.bucket_caps import plan_buckets
from dlplacer.data_parallel.groups.ddp_buckets import Gradient, built_buckets, caps_mb, exchanged_s
from dlplacer.data_parallel.groups.policies import DEFAULT_CAPS_BYTES
from dlplacer.frontend import Job
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.usable_cores import usable_cores
from dlplacer.models import alexnet, branches, googlenet, inception_v3, mlp, resnet50, vgg19
from dlplacer.runtime.devices.allocator import keep_heap

MODELS: dict[str, Callable[[], Job]] = {
    "mlp, 6 x 1024, batch 128": lambda: mlp(batch_size=128, features=256, width=1024, depth=5),
    "mlp, 12 x 512, batch 256": lambda: mlp(batch_size=256, features=256, width=512, depth=11),
    "mlp, 24 x 384, batch 512": lambda: mlp(batch_size=512, features=256, width=384, depth=23),
    "branches, 3 x 48, batch 32": lambda: branches(batch_size=32, image_size=48),
    "AlexNet / 4, 127 px, batch 16": lambda: alexnet(batch_size=16, image_size=127, narrow=4),
    "VGG-19 / 4, 64 px, batch 8": lambda: vgg19(batch_size=8, image_size=64, narrow=4),
    "GoogLeNet / 2, 96 px, batch 8": lambda: googlenet(batch_size=8, image_size=96, narrow=2),
    "ResNet-50 / 2, 96 px, batch 8": lambda: resnet50(batch_size=8, image_size=96, narrow=2),
    "Inception-V3, 107 px, batch 4": lambda: inception_v3(batch_size=4, image_size=107),
}
WARMUP = 4


class Channel:
    """One message after another, each a start-up time and a time per byte after it was handed over."""

    def __init__(self) -> None:
        self.line = AlphaBeta(0.0, 0.0)
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._carry, daemon=True).start()

    def hook(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A hook for DDP."""
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._waiting.put((bucket.buffer(), done))
        return done

    def _carry(self) -> None:
        free_s = 0.0
        while True:
            tensor, done = self._waiting.get()
            free_s = max(free_s, time.perf_counter()) + self.line.time_s(tensor.numel() * tensor.element_size())
            while (left_s := free_s - time.perf_counter()) > 0:
                time.sleep(left_s)
            done.set_result(tensor)


def timed_backward(model: nn.Module, job: Job) -> float:
    """Seconds of a backward pass, all its exchanges included."""
    model.zero_grad()
    loss = job.loss(model(*job.args), *job.targets)
    begin = time.perf_counter()
    loss.backward()
    return time.perf_counter() - begin


class Ready:
    """When each gradient of a model is there, seconds from the start of its backward pass."""

    def __init__(self, job: Job) -> None:
        self.job, self.model = job, DistributedDataParallel(copy.deepcopy(job.module), bucket_cap_mb_list=[1e6])
        self.seen: dict[str, list[float]] = {}
        self.now: dict[str, float] = {}
        for name, parameter in self.model.module.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: self._note(name))

    def _note(self, name: str) -> None:
        self.now[name] = time.perf_counter()

    def step(self) -> None:
        self.model.zero_grad()
        loss = self.job.loss(self.model(*self.job.args), *self.job.targets)
        begin = time.perf_counter()
        loss.backward()
        for name, at_s in self.now.items():
            self.seen.setdefault(name, []).append(at_s - begin)

    def gradients(self) -> list[Gradient]:
        sizes = {name: 4 * parameter.numel() for name, parameter in self.model.module.named_parameters()}
        ready = sorted((median(times_s), name) for name, times_s in self.seen.items())
        return [Gradient(name, sizes[name], ready_s=at_s) for at_s, name in ready]


def measured(job: Job, rounds: int) -> dict[str, Any]:
    """Policy → predicted and measured seconds of the backward pass with its exchanges."""
    channel, ready = Channel(), Ready(job)
    for _ in range(WARMUP):
        ready.step()
    ready.seen.clear()
    for _ in range(5):
        ready.step()
    gradients = ready.gradients()
    backward_s, size = gradients[-1].ready_s, sum(each.bytes for each in gradients)
    channel.line = AlphaBeta(backward_s / 40, backward_s / size)
    planned = plan_buckets(gradients, channel.line)
    caps = {
        "planned": planned.caps_bytes,
        "DDP's own": DEFAULT_CAPS_BYTES,
        "one message": (size,),
        "one each": (1,),
    }
    models = {}
    for name, cap in caps.items():
        kwargs = {} if name == "DDP's own" else {"bucket_cap_mb_list": caps_mb(cap)}
        models[name] = DistributedDataParallel(copy.deepcopy(job.module), **kwargs)
        models[name].register_comm_hook(None, channel.hook)
        for _ in range(WARMUP):
            timed_backward(models[name], job)
    ready.seen.clear()
    found: dict[str, list[float]] = {name: [] for name in caps}
    for _ in range(rounds):
        ready.step()
        for name, model in models.items():
            found[name].append(timed_backward(model, job))
    gradients = ready.gradients()
    line = channel.line
    return {
        name: {
            "predicted_s": exchanged_s(built_buckets(gradients, cap), line.latency_s, line.s_per_byte),
            "measured_s": median(found[name]),
            "messages": len(built_buckets(gradients, cap)),
        }
        for name, cap in caps.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {usable_cores()[-1]})
    torch.set_num_threads(1)
    keep_heap()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ratios: dict[str, list[float]] = {}
    errors: list[float] = []
    for name, build in MODELS.items():
        row = measured(build(), arguments.rounds)
        for policy, times in row.items():
            ratios.setdefault(policy, []).append(times["measured_s"] / row["planned"]["measured_s"])
            errors.append(times["measured_s"] / times["predicted_s"] - 1)
        print(json.dumps({"model": name, **row}) if arguments.json else _line(name, row), flush=True)
    if not arguments.json:
        worst = max(errors, key=abs)
        print(f"measured ÷ predicted − 1: median {median(map(abs, errors)):.1%}, worst {worst:+.1%}")
        for policy, values in ratios.items():
            print(f"{policy}: {geometric_mean(values):.3f} times the planned groups' time")
    dist.destroy_process_group()


def _line(name: str, row: dict[str, Any]) -> str:
    cells = (
        f"{policy} {1e3 * times['measured_s']:.1f} ms ({times['messages']}, "
        f"{times['measured_s'] / times['predicted_s'] - 1:+.1%})"
        for policy, times in row.items()
    )
    return f"{name:32} {'; '.join(cells)}"


if __name__ == "__main__":
    main()
