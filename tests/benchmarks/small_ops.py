"""What running a plan costs beside plain PyTorch: steps of small ops and of large ones, placed ÷ eager.

    python tests/benchmarks/small_ops.py [--jobs NAME…] [--repetitions N]

Every row alternates, forwards and backwards, between plain PyTorch on the first device and the same step placed on one
device or on two. A ratio is the median over repetitions of (placed ÷ eager of the same repetition), with its range. Two
independent chains on two devices are compared with one device too. Nothing else should run on these cores meanwhile.
"""

import argparse
import copy
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from benchmarks.prediction_jobs import Attention
from runtime.random_plans import machine, with_unit_times
from torch import nn
from torch.nn import functional

from dlplacer import models
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.frontend import Job, capture
from dlplacer.measure.steps import EagerStep, PlacedJob
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import build_problem
from dlplacer.runtime import apply
from dlplacer.runtime.devices.cpu import reserve_heap
from dlplacer.solvers.instance.outcome import Outcome, ProblemSchedule


class Chain(nn.Module):
    """1,008 chained ops on 8 × 8 matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(504):
            x = torch.tanh(x @ self.weight)
        return x


class TwoChains(nn.Module):
    """Two independent halves of `Chain`."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(torch.randn(8, 8) / 3) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x, x
        for _ in range(252):
            left = torch.tanh(left @ self.left)
        for _ in range(252):
            right = torch.tanh(right @ self.right)
        return left + right


class AttentionGru(nn.Module):
    """A recurrent decoder that attends to its inputs at every step, of cells written out."""

    def __init__(self, width: int, length: int, words: int) -> None:
        super().__init__()
        self.words, self.cell, self.head = (
            nn.Embedding(words, width),
            nn.GRUCell(2 * width, width),
            nn.Linear(width, words),
        )
        self.length = length

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        state = x.new_zeros(x.shape[0], x.shape[2])
        states = []
        for place in range(self.length):
            weights = torch.softmax(torch.bmm(x, state.unsqueeze(2)).squeeze(2), 1)
            context = torch.bmm(weights.unsqueeze(1), x).squeeze(1)
            state = self.cell(torch.cat([x[:, place], context], 1), state)
            states.append(state)
        logits: torch.Tensor = self.head(torch.stack(states, 1)).flatten(0, 1)
        return logits


def chain() -> Job:
    torch.manual_seed(0)
    return Job(Chain(), (torch.randn(8, 8),), mode="infer")


def two_chains() -> Job:
    torch.manual_seed(0)
    return Job(TwoChains(), (torch.randn(8, 8),), mode="infer")


def attention_gru() -> Job:
    torch.manual_seed(0)
    module = AttentionGru(32, 24, 100)
    return Job(module, (torch.randint(100, (4, 24)),), (torch.randint(100, (96,)),), functional.cross_entropy)


def transformer() -> Job:
    torch.manual_seed(0)
    module, words = Attention(500, 64, 12, 4, 32), torch.randint(500, (2, 32))
    return Job(module, (words,), (torch.randint(500, (64,)),), functional.cross_entropy)


JOBS: dict[str, Callable[[], Job]] = {
    "chain": chain,
    "two_chains": two_chains,
    "attention_gru": attention_gru,
    "transformer": transformer,
    "inception_v3 139": partial(models.inception_v3, batch_size=1, image_size=139),
    "inception_v3 299": partial(models.inception_v3, batch_size=1),
    "resnet50": partial(models.resnet50, batch_size=2),
}
WARM_S = 3.0
SPREAD = ("chain", "two_chains", "attention_gru", "transformer")
"""Those that also run on two devices."""
INDEPENDENT = ("two_chains",)
"""Those of halves that know nothing of each other."""


def main() -> None:
    """Parse, measure every job, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.1, help="of steps in one repetition, at least one step")
    arguments = parser.parse_args()
    print(f"{'job':<18}{'devices':>8}{'ops':>6}{'transfers':>10}{'eager':>11}{'placed':>11}{'ratio':>8}   range")
    for name in arguments.jobs:
        for count in (1, 2) if name in SPREAD else (1,):
            print(measured(name, count, arguments.repetitions, arguments.seconds), flush=True)


def measured(name: str, count: int, repetitions: int, seconds: float) -> str:
    """The row of one job on one or two devices."""
    job = JOBS[name]()
    reference = copy.deepcopy(job.module)
    graph = capture(job)
    plan = spread(graph, count, halves=name in INDEPENDENT)
    reserve_heap(3 * sum(op.footprint_bytes for op in graph.ops))
    with ExitStack() as stack:

        def placed_step(plan: Plan, devices: int) -> PlacedJob:
            own = replace(job, module=copy.deepcopy(reference))
            placed = stack.enter_context(closing(apply(own, plan, [f"cpu:{index}" for index in range(devices)])))
            return PlacedJob(placed, placed.captured, [own])

        own = placed_step(plan, count)
        steps = [EagerStep([job], reference, next(iter(own.devices.values()))).step, own.step]
        if count > 1 and name in INDEPENDENT:
            steps.append(placed_step(spread(graph, 1, halves=False), 1).step)
        found = alternating(steps, repetitions, seconds)
    ratios = sorted(row[1] / row[0] for row in found)
    ops = sum(op.kind.startswith("aten") for op in graph.ops)
    plain_s, ours_s = (median(row[which] for row in found) for which in (0, 1))
    line = (
        f"{name:<18}{count:>8}{ops:>6}{transfers(plan):>10}{1e3 * plain_s:>8.2f} ms{1e3 * ours_s:>8.2f} ms"
        f"{median(ratios):>8.3f}   {ratios[0]:.3f}–{ratios[-1]:.3f}"
    )
    if len(steps) > 2:
        gains = sorted(row[2] / row[1] for row in found)
        line += f"; {median(gains):.2f}x ({gains[0]:.2f}–{gains[-1]:.2f}) as fast as on one device"
    return line


def alternating(steps: list[Callable[[], object]], repetitions: int, seconds: float) -> list[tuple[float, ...]]:
    """[repetition][step] → seconds of a step, the mean of those of a repetition; the order changes every time."""
    counts = []
    for step in steps:
        warm_until = time.perf_counter() + WARM_S
        for number in range(12):  # the interpreter specialises code that has run a few times
            if number < 3 or time.perf_counter() < warm_until:
                step()
        begin = time.perf_counter()
        step()
        counts.append(max(1, round(seconds / (time.perf_counter() - begin))))
    found = []
    for repetition in range(repetitions):
        times = [0.0] * len(steps)
        numbers = range(len(steps))
        for number in numbers if repetition % 2 else reversed(numbers):
            begin = time.perf_counter()
            for _ in range(counts[number]):
                steps[number]()
            times[number] = (time.perf_counter() - begin) / counts[number]
        found.append(tuple(times))
    return found


def spread(graph: OpGraph, count: int, halves: bool) -> Plan:
    """A plan that runs ops in the order of the graph, each on a device drawn at random, or each half on its own."""
    chooser = torch.Generator().manual_seed(4)
    problem = build_problem(with_unit_times(graph), machine(count), Options.paper())
    device, start, groups = [], [], {}
    for number, op in enumerate(graph.ops):
        here = int(torch.randint(count, (), generator=chooser))
        if halves:
            here = min(count - 1, 2 * number // len(graph.ops))
        here = here if op.colocate is None else groups.setdefault(op.colocate, here)
        device.append(here)
        start.append(0)
    clock = 0
    for op in problem_order(graph):
        start[op] = clock
        clock += 10**12
    schedule = ProblemSchedule(problem, tuple(device), tuple(start))
    return assemble(problem, Outcome(schedule, 0), schedule, "spread", 0.0, {})


def problem_order(graph: OpGraph) -> list[int]:
    numbers = {op.id: number for number, op in enumerate(graph.ops)}
    return [numbers[name] for name in graph.topological_order]


def transfers(plan: Plan) -> int:
    """How many tensors cross devices."""
    home = plan.placement
    return len(
        {(edge.tensor, home[edge.target]) for edge in plan.graph.edges if home[edge.source] != home[edge.target]}
    )


if __name__ == "__main__":
    main()
