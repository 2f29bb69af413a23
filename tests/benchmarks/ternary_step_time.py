"""Step times of ternary gradients beside float32, float16 and PowerSGD, and nanoseconds of their codec.

Two gloo ranks with a core each train a perceptron of 6 million parameters. The link is the loopback of a network
namespace of this run's own, throttled by ``tc``; both directions share its rate. Where the machine permits no such
namespace the link is emulated: a step is held up by its bytes over the rate, with nothing hidden behind the backward
pass. Methods alternate in rounds, forwards and backwards in turn, so that all see the same machine; medians are shown.

Run: ``python tests/benchmarks/ternary_step_time.py [--rates 1000] [--rounds N]``, a minute on two idle cores.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "examples")]

from _sent_bytes import sent_bytes

RANKS = 2
WIDTH, DEPTH, BATCH = 1024, 5, 128
WARMUP = 3
UNTHROTTLED = 0.0
IN_NAMESPACE = "DLPLACER_BENCHMARK_NAMESPACE"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[UNTHROTTLED, 1000.0], help="Mbit/s; 0: unthrottled")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if IN_NAMESPACE not in os.environ and namespaces_permitted():
        environment = {**os.environ, IN_NAMESPACE: "1"}
        raise SystemExit(subprocess.run(["unshare", "-n", sys.executable, *sys.argv], env=environment).returncode)
    codec = codec_ns()
    tables = {rate: measured(rate, arguments.rounds) for rate in arguments.rates}
    if arguments.json:
        print(json.dumps({"codec_ns_per_element": codec, "steps": tables, "load": os.getloadavg()[0]}))
        return
    print(f"codec, ns per element on one core: {', '.join(f'{name} {ns:.2f}' for name, ns in codec.items())}")
    for rate, table in tables.items():
        show(rate, table)
    print(f"load average of the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def namespaces_permitted() -> bool:
    """Whether this process may make a network namespace and throttle what is in it."""
    script = "ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 128kb latency 400ms"
    try:
        return subprocess.run(["unshare", "-n", "sh", "-c", script], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def show(rate: float, table: dict[str, dict[str, float]]) -> None:
    where = "loopback of a namespace" if IN_NAMESPACE in os.environ else "emulated link"
    print(f"\n{f'{rate:g} Mbit/s' if rate else 'unthrottled'}, {where}, {RANKS} ranks, {BATCH} samples each")
    print(f"{'':12} {'ms/step':>9} {'fp32 ÷ it':>10} {'fp16 ÷ it':>10} {'MB/step':>9}")
    for name, row in table.items():
        ratios = [table[other]["step_s"] / row["step_s"] for other in ("fp32", "fp16")]
        print(
            f"{name:12} {1e3 * row['step_s']:9.1f} {ratios[0]:9.2f}x {ratios[1]:9.2f}x {row['sent_bytes'] / 1e6:9.2f}"
        )


def measured(rate_mbit: float, rounds: int) -> dict[str, dict[str, float]]:
    """Median step and bytes per step of every method at a rate."""
    from dlplacer.runtime.distributed.launch import launch, results_of

    if IN_NAMESPACE in os.environ:
        throttle(rate_mbit)
        rate_mbit = UNTHROTTLED
    found = results_of(launch(RANKS, lambda rank: rank_steps(rank, rounds, rate_mbit), 150))
    return {
        name: {
            "step_s": max(median(rank[name]["times_s"]) for rank in found),
            "sent_bytes": found[0][name]["sent_bytes"],
        }
        for name in found[0]
    }


def throttle(rate_mbit: float) -> None:
    """Set the rate of this namespace's loopback."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], capture_output=True)
    if rate_mbit:
        # A burst of one segment of the loopback's size: a larger one would let small messages pass for free.
        limits = ["rate", f"{rate_mbit}mbit", "burst", "128kb", "latency", "400ms"]
        subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", "tbf", *limits], check=True)


def rank_steps(rank: int, rounds: int, emulated_mbit: float) -> dict[str, dict[str, Any]]:
    """Times of steps and bytes of one rank, by method."""
    import torch.distributed as dist

    from dlplacer.machines.usable_cores import usable_cores
    from dlplacer.runtime.devices.allocator import keep_heap

    cores = sorted(usable_cores())
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    keep_heap()
    dist.init_process_group("gloo")
    steps = {name: stepper(make, emulated_mbit) for name, make in methods().items()}
    for _ in range(WARMUP):
        for step in steps.values():
            step()
    found: dict[str, dict[str, Any]] = {name: {"times_s": []} for name in steps}
    for turn in range(rounds):
        for name in list(steps)[:: 1 if turn % 2 == 0 else -1]:
            dist.barrier()
            sent, begin = sent_bytes() or 0, time.perf_counter()
            steps[name]()
            found[name]["times_s"].append(time.perf_counter() - begin)
            found[name]["sent_bytes"] = (sent_bytes() or 0) - sent
    return found


def methods() -> dict[str, Callable[[Any], tuple[object, Any]]]:
    """Name → (state, hook) for a wrapped model; no hook for DistributedDataParallel's own all-reduce."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    from dlplacer.data_parallel import TernaryState, ternary_hook

    return {
        "fp32": lambda: (None, None),
        "fp16": lambda: (None, default_hooks.fp16_compress_hook),
        "PowerSGD 1": lambda: (
            powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2),
            powerSGD_hook.powerSGD_hook,
        ),
        "ternary": lambda: (TernaryState(), ternary_hook),
    }


def stepper(make: Callable[[], tuple[object, Any]], emulated_mbit: float) -> Callable[[], None]:
    """A step of SGD by a method, on random data."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(784, WIDTH)]
    for _ in range(DEPTH):
        layers += [nn.ReLU(), nn.Linear(WIDTH, WIDTH)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(WIDTH, 10))
    state, hook = make()
    # PowerSGD with several buckets hangs on gloo: its second collective is started in a callback.
    cap = {"bucket_cap_mb": 1000} if "PowerSGD" in type(state).__name__ else {}
    ddp = DistributedDataParallel(model, **cap)
    if hook is not None:
        ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), 1e-3)
    inputs, targets = torch.randn(BATCH, 784), torch.randint(0, 10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        before = sent_bytes() or 0
        nn.functional.cross_entropy(ddp(inputs), targets).backward()
        if emulated_mbit:
            time.sleep(8e-6 / emulated_mbit * RANKS * ((sent_bytes() or 0) - before))
        optimizer.step()

    return step


def codec_ns(numel: int = 1 << 22) -> dict[str, float]:
    """Nanoseconds per element on one core: what `ternary_hook` encodes with, and decodes of two ranks' codes."""
    import numpy as np
    import torch

    from dlplacer.data_parallel.ternary.kernels import kernels_for

    torch.set_num_threads(1)
    kernels, table = kernels_for("cpu"), np.array([[0, numel, 0]])
    flat, words = torch.randn(numel), torch.zeros(2, numel // 16, dtype=torch.int32)
    keys, mean = np.array([[1, 2]], dtype=np.uint32), torch.zeros(numel)

    def encode() -> None:
        found = kernels.measure(flat, table, 2.5)
        kernels.encode(flat, table, found[:, 0].contiguous(), found[:, 1].contiguous(), keys, words[0])

    scalers = torch.ones(2, 1)
    work = {"encode": encode, "decode of 2 ranks": lambda: kernels.decode(words, scalers, table, mean)}
    return {name: 1e9 * median(timed(call) for _ in range(9)) / numel for name, call in work.items()}


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
