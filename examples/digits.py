"""Handwritten digits, learnt by several processes with every method of data parallelism.

A small convolutional network learns scikit-learn's 1,797 digits. Each method trains it from the same start on the same
batches; the table says how accurate it becomes, what each rank has sent, and how long a step takes. The picture shows
the loss against seconds and against bytes.

Run it: ``python examples/digits.py`` starts its own ranks; ``torchrun --nproc-per-node 2 examples/digits.py`` has them
started. ``--methods``, ``--seeds`` and ``--epochs`` say what to try; ``--output digits.png`` draws, ``--json`` prints
everything that was measured. With several numbers of epochs every method trains as often, from the start, and the
picture has the error of each of these runs against its seconds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import product
from statistics import fmean, median

import torch
import torch.distributed as dist
from _sent_bytes import sent_bytes
from asynchronous import AsyncWorker, run_async
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dlplacer.data_parallel import OuterOptimizer, TernaryState, diloco, easgd, local_sgd, ternary_hook
from dlplacer.data_parallel.elastic.outer_rules import OuterRule

BATCH, LEARNING_RATE, MOMENTUM, PERIOD = 32, 0.05, 0.9, 4
TEST_SHARE = 5
"""Every fifth digit is kept for the test."""


@dataclass
class Run:
    """What one rank saw of one training.

    Attributes
    ----------
    losses
        Of this rank's batches; beside each the seconds and the bytes sent since the start.
    """

    method: str
    seed: int
    accuracy: float = 0.0
    step_s: float = 0.0
    sent: int | None = None
    losses: list[tuple[float, int | None, float]] = field(default_factory=list)


@dataclass
class Task:
    """One training to do: a method is a function that does it, most often by `fit`."""

    method: str
    seed: int
    epochs: int
    rate: float = LEARNING_RATE

    def model(self) -> nn.Module:
        """The network, the same on every call and rank."""
        torch.manual_seed(self.seed)
        return nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU()),
            nn.Linear(128, 10),
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of every method that does not bring its own."""
        return torch.optim.SGD(model.parameters(), self.rate, momentum=MOMENTUM)

    def batches(self, rank: int, ranks: int) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's batches of all epochs, other ones on every rank."""
        images, labels, _, _ = digits()
        draw = torch.Generator().manual_seed(self.seed)
        found = []
        for _ in range(self.epochs):
            order = torch.randperm(len(images), generator=draw)
            for begin in range(0, len(images) - ranks * BATCH + 1, ranks * BATCH):
                chosen = order[begin + rank * BATCH : begin + (rank + 1) * BATCH]
                found.append((images[chosen], labels[chosen]))
        return found

    def fit(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Run:
        """Train a model, wrapped or not, and test it."""
        dist.barrier()
        batches = self.batches(dist.get_rank(), dist.get_world_size())
        return self.fit_batches(model, optimizer or self.optimizer(model), batches)

    def fit_batches(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> Run:
        """Train a model on these batches, and test it."""
        run, times = Run(self.method, self.seed), []
        start, before = time.perf_counter(), sent_bytes()
        for images, labels in batches:
            begin = time.perf_counter()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            end, sent = time.perf_counter(), sent_bytes()
            times.append(end - begin)
            run.sent = None if sent is None or before is None else sent - before
            run.losses.append((end - start, run.sent, loss.item()))
        run.step_s, run.accuracy = median(times), accuracy(model)
        return run


def fp32(task: Task) -> Run:
    """DistributedDataParallel as it comes."""
    return task.fit(DistributedDataParallel(task.model()))


def fp16(task: Task) -> Run:
    """Gradients sent as float16."""
    model = DistributedDataParallel(task.model())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return task.fit(model)


def power_sgd(task: Task) -> Run:
    """Gradients sent as products of two thin matrices (Vogels et al. 2019), from the third step on."""
    # One bucket: with more, the second collective of PowerSGD, which a callback starts, hangs on gloo.
    model = DistributedDataParallel(task.model(), bucket_cap_mb=1000)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return task.fit(model)


def ternary(task: Task, make: Callable[..., TernaryState] = TernaryState) -> Run:
    """Gradients sent with two bits per element (Wen et al. 2017)."""
    model = DistributedDataParallel(task.model())
    model.register_comm_hook(make(seed=task.seed), ternary_hook)
    return task.fit(model)


def outer(task: Task, rule: OuterRule) -> Run:
    """Workers of their own, which synchronise every few steps; what is tested is the centre."""
    model = task.model()
    optimizer = task.optimizer(model)
    with OuterOptimizer(model, optimizer, rule, sync_every=PERIOD) as outer_optimizer:
        run = task.fit(model, optimizer)
        with outer_optimizer.at_centre():
            return replace(run, accuracy=accuracy(model))


def asynchronous(
    task: Task, rule: str = "async", pull: float | None = 0.3, momentum: float = 0.0, lock: bool = True
) -> Run:
    """Processes around a centre in shared memory, as many as there are ranks; what is tested is the centre."""
    shared: list[list[Run] | None] = [None]
    if dist.get_rank() == 0:
        train = partial(train_worker, task=task)
        result = run_async(train, dist.get_world_size(), rule, momentum, lock, pull=pull, sync_every=PERIOD)
        model = task.model()
        model.load_state_dict(result.centre)
        shared = [[replace(run, accuracy=accuracy(model)) for run in result.results]]
    dist.broadcast_object_list(shared)
    runs = shared[0]
    assert runs is not None
    return runs[dist.get_rank()]


def train_worker(worker: AsyncWorker, task: Task) -> Run:
    """What each process of asynchronous training does; nothing is sent, as the centre is in shared memory."""
    model = worker.join(task.model())
    batches = task.batches(worker.rank, worker.workers)
    return replace(task.fit_batches(model, worker.optimizer(task.rate), batches), sent=None)


METHODS: dict[str, Callable[[Task], Run]] = {
    "fp32": fp32,
    "fp16": fp16,
    "PowerSGD": power_sgd,
    "ternary": ternary,
    "ternary_paper": partial(ternary, make=TernaryState.paper),
    "easgd": partial(outer, rule=easgd(pull=0.3)),
    "local_sgd": partial(outer, rule=local_sgd()),
    "diloco": partial(outer, rule=diloco(partial(torch.optim.SGD, lr=0.7, momentum=0.5, nesterov=True))),
    # Elastic averaging, and behind each its counterpart: the same order of workers around a parameter server.
    "async_easgd": asynchronous,
    "async_sgd": partial(asynchronous, pull=None),
    "async_measgd": partial(asynchronous, momentum=MOMENTUM),
    "async_msgd": partial(asynchronous, pull=None, momentum=MOMENTUM),
    "hogwild_easgd": partial(asynchronous, lock=False),
    "hogwild_sgd": partial(asynchronous, pull=None, lock=False),
    "original_easgd": partial(asynchronous, rule="one_at_a_time"),
    "original_sgd": partial(asynchronous, pull=None, rule="one_at_a_time"),
}
"""Name → what trains by that method. A new one is added here; it gets the table and the picture for nothing."""


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels to train on, and to test with."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    tested = torch.arange(len(images)) % TEST_SHARE == 0
    return images[~tested], labels[~tested], images[tested], labels[tested]


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Share of the test digits that are recognized."""
    _, _, images, labels = digits()
    return float((model(images).argmax(1) == labels).float().mean())


def everyones(run: Run) -> list[Run]:
    """The run as every rank saw it."""
    found: list[dict[str, object]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, asdict(run))
    return [Run(**one) for one in found]  # type: ignore[arg-type]


def merged(runs: Sequence[Run]) -> Run:
    """Ranks put together: mean losses, the bytes of the rank that sent most, the slowest rank's step."""
    losses = [
        (ranks[0][0], ranks[0][1], fmean(loss for _, _, loss in ranks))
        for ranks in zip(*(run.losses for run in runs), strict=True)
    ]
    sent = None if runs[0].sent is None else max(run.sent or 0 for run in runs)
    return Run(
        runs[0].method,
        runs[0].seed,
        fmean(run.accuracy for run in runs),
        max(run.step_s for run in runs),
        sent,
        losses,
    )


def show(runs: Sequence[Run]) -> None:
    """Print a line for every method and number of steps: means over seeds."""
    print(f"{'method':14} {'steps':>5} {'accuracy':>9} {'sent per rank':>14} {'step':>9}")
    for method, steps in dict.fromkeys((run.method, len(run.losses)) for run in runs):
        own = [run for run in runs if (run.method, len(run.losses)) == (method, steps)]
        sent = "-" if own[0].sent is None else f"{fmean(run.sent or 0 for run in own) / 1e6:.2f} MB"
        step_ms = 1e3 * median(run.step_s for run in own)
        print(f"{method:14} {steps:5} {fmean(run.accuracy for run in own):9.2%} {sent:>14} {step_ms:6.2f} ms")


def draw(runs: Sequence[Run], path: str) -> None:
    """Draw each method's error, of all its runs, and the loss of its longest first one against seconds and bytes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (errors, by_time, by_bytes) = pyplot.subplots(1, 3, figsize=(15, 4), layout="constrained")
    by_bytes.sharey(by_time)
    for method in dict.fromkeys(run.method for run in runs):
        own = [run for run in runs if run.method == method]
        points = sorted((run.losses[-1][0], 1 - run.accuracy) for run in own)
        errors.plot(*zip(*points, strict=True), marker="o", markersize=3)
        run = max((run for run in own if run.seed == runs[0].seed), key=lambda run: len(run.losses))
        smooth = [fmean(loss for _, _, loss in run.losses[max(0, at - 9) : at + 1]) for at in range(len(run.losses))]
        by_time.plot([seconds for seconds, _, _ in run.losses], smooth, label=run.method)
        if run.sent is not None:
            by_bytes.plot([sent for _, sent, _ in run.losses], smooth, label=run.method)
    errors.set(xlabel="seconds", ylabel="share of test digits that are wrong", xscale="log", yscale="log")
    by_time.set(xlabel="seconds", ylabel="loss, mean of ten steps", yscale="log")
    by_bytes.set(xlabel="bytes sent by each rank", xscale="log")
    by_time.legend()
    figure.savefig(path)
    pyplot.close(figure)


def main() -> None:
    """Train by every method that was asked for, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", nargs="+", type=int, default=[12])
    parser.add_argument("--rate", type=float, default=LEARNING_RATE, help=f"learning rate ({LEARNING_RATE:g})")
    parser.add_argument("--ranks", type=int, default=2, help="how many, where torchrun does not say it")
    parser.add_argument("--output", help="a picture to draw")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, "--nproc-per-node", str(arguments.ranks), *sys.argv]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        raise SystemExit(subprocess.run(command, env=environment, check=False).returncode)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    runs = []
    for seed in arguments.seeds:
        for method, epochs in product(arguments.methods, arguments.epochs):
            runs.append(merged(everyones(METHODS[method](Task(method, seed, epochs, arguments.rate)))))
    if dist.get_rank() == 0:
        if arguments.json:
            print(json.dumps([asdict(run) for run in runs]))
        else:
            show(runs)
        if arguments.output:
            draw(runs, arguments.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
