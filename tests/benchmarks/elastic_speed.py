"""Elastic averaging beside DistributedDataParallel and torch's post-local SGD: step time over a slow link, and loss.

Two gloo ranks with a torch thread each. The link is the loopback of a network namespace of its own, throttled by
``tc tbf``; both directions share its rate. Where namespaces are not permitted, all-reduces end no earlier than over a
link of that rate. Methods alternate in rounds, every second round in reverse order; the table has the medians of all
rounds and of either order. Times of different runs cannot be compared, ratios within one can.

Run: ``python tests/benchmarks/elastic_speed.py [--gbit 1] [--rounds N] [--json]``, on a machine with two idle cores; it
takes about two minutes.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

from dlplacer.data_parallel import OuterOptimizer, easgd, local_sgd
from dlplacer.runtime.distributed.launch import launch, results_of

RANKS, BATCH, WIDTH, DEPTH, PERIOD = 2, 128, 1024, 6, 4
TENSORS, TENSOR_SIZE = 160, 1024
LOSS_STEPS, LOSS_BATCH, CLASSES = 400, 32, 10
INSIDE = "DLPLACER_BENCHMARK_LINK"
Step = Callable[[torch.Tensor, torch.Tensor], None]
METHODS = (
    "DDP",
    "EASGD, period 4",
    "EASGD, not overlapped",
    "EASGD, delay 4",
    "EASGD, period 1",
    "local SGD, period 4",
)
METHODS += ("torch's PostLocalSGD, period 4", "no exchange")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--gbit", type=float, default=1.0, help="rate of the link in Gbit/s; 0 for the loopback as it is"
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds: give at least 2, one in each order")
    if INSIDE not in os.environ and arguments.gbit:
        prefix = throttled_namespace(arguments.gbit)
        if prefix is not None:
            command = [*prefix, sys.executable, *sys.argv]
            raise SystemExit(subprocess.run(command, env={**os.environ, INSIDE: "tbf"}, check=False).returncode)
    link = os.environ.get(INSIDE, "emulated") if arguments.gbit else "loopback"
    emulated_gbit = arguments.gbit if link == "emulated" else None

    def work(rank: int) -> dict[str, Any]:
        return measured(emulated_gbit, arguments.rounds)

    found = results_of(launch(RANKS, work, 600))[0]
    found["link"] = f"{arguments.gbit:g} Gbit/s, {link}" if arguments.gbit else link
    print(json.dumps(found)) if arguments.json else show(found)


def throttled_namespace(gbit: float) -> list[str] | None:
    """What starts a command in a network namespace whose loopback has this rate; None if that is not permitted."""
    setup = f"ip link set lo up && tc qdisc add dev lo root tbf rate {gbit * 1000:g}mbit burst 256kb latency 100ms"
    for unshare in (["unshare", "--net"], ["unshare", "--net", "--user", "--map-root-user"]):
        if all(map(shutil.which, ("unshare", "ip", "tc"))):
            done = subprocess.run([*unshare, "sh", "-c", setup], capture_output=True, check=False)
            if done.returncode == 0:
                return [*unshare, "sh", "-c", f'{setup} && exec "$@"', "sh"]
    return None


def show(found: dict[str, Any]) -> None:
    ddp = found["step_s"]["DDP"]
    print(f"link: {found['link']}; {found['parameters'] / 1e6:.1f} M parameters, batch {BATCH}, medians per step")
    print(f"{'method':32} {'ms':>8} {'forward':>8} {'reverse':>8} {'DDP ÷ it':>9}")
    for name, seconds in found["step_s"].items():
        orders = [1e3 * value for value in found["orders_s"][name]]
        print(f"{name:32} {1e3 * seconds:8.1f} {orders[0]:8.1f} {orders[1]:8.1f} {ddp / seconds:8.2f}x")
    packed, each = found["packed_s"], found["per_tensor_s"]
    print(
        f"{TENSORS} x {TENSOR_SIZE} floats on the same link: packed {1e3 * packed:.2f} ms, per tensor "
        f"{1e3 * each:.2f} ms: {each / packed:.1f}x"
    )
    for name, loss in found["loss"].items():
        print(
            f"{name:32} held-out loss {loss:.4f} after equal samples, {100 * (loss / found['loss']['DDP'] - 1):+.2f} %"
        )


def measured(emulated_gbit: float | None, rounds: int) -> dict[str, Any]:
    """What one rank measures."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
    dist.init_process_group("gloo")
    with emulated(emulated_gbit) if emulated_gbit else contextlib.nullcontext():
        times = step_times(rounds)
        packed = packed_times(rounds)
    return {
        "parameters": sum(parameter.numel() for parameter in network().parameters()),
        "step_s": {name: median(of) for name, of in times.items()},
        "orders_s": {name: (median(of[::2]), median(of[1::2])) for name, of in times.items()},
        "packed_s": packed[0],
        "per_tensor_s": packed[1],
        "loss": losses(),
    }


def network(width: int = WIDTH, depth: int = DEPTH, features: int = WIDTH) -> nn.Module:
    torch.manual_seed(0)
    sizes = [features, *[width] * (depth - 1)]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], sizes[-1] if features == width else CLASSES))


@contextlib.contextmanager
def method(name: str, model: nn.Module, lr: float = 0.01, momentum: float = 0.9) -> Iterator[tuple[Step, Any]]:
    """One training step of a method, and its outer optimizer if it has one."""
    trained = DistributedDataParallel(model, broadcast_buffers=False) if name == "DDP" else model
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    if "PostLocalSGD" in name:
        optimizer = PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(period=PERIOD, warmup_steps=0))

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(inputs), targets).backward()
        optimizer.step()

    rules = {
        "EASGD, period 4": (easgd(0.3), PERIOD, True),
        "EASGD, not overlapped": (easgd(0.3), PERIOD, False),
        "EASGD, delay 4": (easgd(0.3, delay=PERIOD), PERIOD, True),
        "EASGD, period 1": (easgd(0.3), 1, True),
        "local SGD, period 4": (local_sgd(), PERIOD, True),
    }
    if name not in rules:
        yield step, None
        return
    rule, period, overlap = rules[name]
    with OuterOptimizer(model, optimizer, rule, sync_every=period, overlap=overlap) as outer:
        yield step, outer


def step_times(rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every method, by round; two periods of steps are timed at a time."""
    inputs, targets = torch.randn(BATCH, WIDTH), torch.randint(WIDTH, (BATCH,))
    times: dict[str, list[float]] = {name: [] for name in METHODS}
    with contextlib.ExitStack() as stack:
        steps = {name: stack.enter_context(method(name, network()))[0] for name in METHODS}
        for count in range(rounds + 1):
            for name in METHODS if count % 2 else reversed(METHODS):
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(2 * PERIOD):
                    steps[name](inputs, targets)
                dist.barrier()
                if count:
                    times[name].append((time.perf_counter() - begin) / (2 * PERIOD))
    return times


def packed_times(rounds: int) -> tuple[float, float]:
    """Seconds of a synchronisation of many small tensors: packed, all copies included, and one all-reduce for each."""
    model = nn.ParameterList([nn.Parameter(torch.randn(TENSOR_SIZE)) for _ in range(TENSORS)])
    inner = torch.optim.SGD(model.parameters(), lr=0.0)
    packed, each = [], []
    with OuterOptimizer(model, inner, local_sgd()) as outer:
        for _ in range(3 * rounds):
            dist.barrier()
            begin = time.perf_counter()
            inner.step()  # without gradients: nothing but the synchronisation
            packed.append(time.perf_counter() - begin)
            dist.barrier()
            begin = time.perf_counter()
            for parameter in model:
                dist.all_reduce(parameter.detach())
                parameter.detach().div_(RANKS)
            each.append(time.perf_counter() - begin)
    assert outer.synchronisations == 3 * rounds
    return median(packed), median(each)


def losses() -> dict[str, float]:
    """Cross-entropy on held-out samples of a noisy teacher, each method after as many samples."""
    torch.manual_seed(1)
    teacher = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, CLASSES))

    def samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(seed)
        inputs = torch.randn(count, 32, generator=draw)
        with torch.no_grad():
            shares = torch.softmax(6 * teacher(inputs), dim=1)
        return inputs, torch.multinomial(shares, 1, generator=draw)[:, 0]

    held_out, found = samples(8192, 0), {}
    for name in ("DDP", "EASGD, period 4", "EASGD, delay 4", "local SGD, period 4", "torch's PostLocalSGD, period 4"):
        model = network(128, 3, 32)
        with method(name, model, lr=0.05) as (step, outer):
            for count in range(LOSS_STEPS):
                step(*samples(LOSS_BATCH, 1 + RANKS * count + dist.get_rank()))
            with torch.no_grad(), outer.at_centre() if outer else contextlib.nullcontext():
                found[name] = float(nn.functional.cross_entropy(model(held_out[0]), held_out[1]))
    return found


@contextlib.contextmanager
def emulated(gbit: float) -> Iterator[None]:
    """All-reduces that end no earlier than if both directions shared a link of this rate, one after the other."""
    plain, free_at = dist.all_reduce, [0.0]

    class Delayed:
        def __init__(self, work: Any, tensor: torch.Tensor) -> None:
            self.work, self.tensor = work, tensor
            sent_bytes = 2 * (RANKS - 1) * tensor.nbytes
            free_at[0] = self.until = max(free_at[0], time.perf_counter()) + sent_bytes * 8 / (gbit * 1e9)

        def wait(self, *timeout: Any) -> bool:
            self.work.wait(*timeout)
            time.sleep(max(0.0, self.until - time.perf_counter()))
            return True

        def is_completed(self) -> bool:
            return bool(self.work.is_completed())

    def all_reduce(tensor: torch.Tensor, *arguments: Any, async_op: bool = False, **options: Any) -> Any:
        delayed = Delayed(plain(tensor, *arguments, async_op=True, **options), tensor)
        return delayed if async_op else delayed.wait()

    class DelayedGradients(DistributedDataParallel):
        """The reducer's own all-reduces, waited for at the end of backward as it does."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.register_comm_hook(None, self.hook)

        def hook(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            delayed = Delayed(plain(bucket.buffer().div_(RANKS), async_op=True), bucket.buffer())

            def after(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
                time.sleep(max(0.0, delayed.until - time.perf_counter()))
                return future.value()[0]

            return delayed.work.get_future().then(after)

    with (
        mock.patch.object(dist, "all_reduce", all_reduce),
        mock.patch(f"{__name__}.DistributedDataParallel", DelayedGradients),
    ):
        yield


if __name__ == "__main__":
    main()
