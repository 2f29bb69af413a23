"""One chip in parts that train together (You, Buluç and Demmel 2017, section 6.2), on the cores of this machine.

A chip whose cores share one model leaves them waiting for each other in every op. In parts, every group of cores has a
copy of the weights and of the data, computes a gradient of its own, and the gradients are added up in a tree. How many
parts there can be is bounded by the fast memory: P copies of weights and data must fit into it. On the paper's KNL that
is MCDRAM of 16 GB; here it is the last-level cache, or what ``--fast-memory`` says.

Run it: ``python examples/05_chip_partition.py``; it trains a small CNN on scikit-learn's digits with 1, 2, 4 … parts.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from paper_models.elastic_cost import most_parts
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from dlplacer.core.units import format_bytes, parse_quantity
from dlplacer.machines.cores import usable_cores

RATE = 0.05


class DigitsNet(nn.Module):
    """Logits, shape (N, 10), for images of shape (N, 1, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Convolutions, then two dense layers."""
        logits: torch.Tensor = self.classifier(torch.flatten(self.features(images), 1))
        return logits


class TreeSum:
    """The sum of one vector per part, in log2 P rounds: in round r part i adds that of part i + 2^r.

    The vectors lie in memory that all parts share; the parts wait for each other between rounds.
    """

    def __init__(self, parts: int, size: int) -> None:
        self.rows = torch.zeros(parts, size).share_memory_()
        self.barrier = multiprocessing.get_context("fork").Barrier(parts)

    def total(self, part: int, vector: torch.Tensor) -> torch.Tensor:
        """The sum over all parts, the same to the bit for each of them."""
        self.rows[part].copy_(vector)
        self.barrier.wait()
        stride = 1
        while stride < len(self.rows):
            if part % (2 * stride) == 0 and part + stride < len(self.rows):
                self.rows[part] += self.rows[part + stride]
            self.barrier.wait()
            stride *= 2
        found = self.rows[0].clone()
        # Nobody writes the next vector while others still read this one.
        self.barrier.wait()
        return found


def main() -> None:
    """Train with every number of parts, and print what a step takes."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    images, labels = digits()
    model = new_model()
    weight_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    data_bytes = images.numel() * images.element_size() + labels.numel() * labels.element_size()
    fast_bytes = int(parse_quantity(arguments.fast_memory, "bytes")) if arguments.fast_memory else last_level_cache()
    bound, cores = most_parts(weight_bytes, data_bytes, fast_bytes), usable_cores()
    most = min(bound, 1 << (len(cores).bit_length() - 1))
    rows = [measured(parts, cores, arguments.steps, arguments.batch_size) for parts in powers(most)]
    if arguments.json:
        print(json.dumps({"bound": bound, "cores": len(cores), "parts": rows}))
        return
    print(
        f"weights {format_bytes(weight_bytes)}, data {format_bytes(data_bytes)}, fast memory "
        f"{format_bytes(fast_bytes)}: at most {bound} parts by memory, {most} by the {len(cores)} cores"
    )
    for row in rows:
        print(
            f"{row['parts']} parts of {row['cores']} cores: {1e3 * row['step_s']:.2f} ms per step, "
            f"{row['samples_per_s']:.0f} samples/s, loss {row['loss']:.4f}, accuracy {row['accuracy']:.3f}, "
            f"largest difference to one process {row['difference']:.1e}"
        )


def powers(most: int) -> list[int]:
    """1, 2, 4 … up to this."""
    return [1 << power for power in range(max(1, most).bit_length())]


def measured(parts: int, cores: Sequence[int], steps: int, batch_size: int) -> dict[str, Any]:
    """Train in so many parts, each on its share of the cores and of every batch; and what one process makes of it."""
    model = new_model()
    tree = TreeSum(parts, sum(parameter.numel() for parameter in model.parameters()))
    share = len(cores) // parts

    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def work(part: int) -> None:
        group = cores[part * share : (part + 1) * share]
        os.sched_setaffinity(0, group)
        torch.set_num_threads(len(group))
        times_s, loss, weights = trained(new_model(), batches(steps, batch_size), part, parts, tree)
        results.put((times_s, loss, weights.numpy()))

    processes = [context.Process(target=work, args=(part,), daemon=True) for part in range(parts)]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    times_s, loss, array = found[0]
    if any(not np.array_equal(array, others) for _, _, others in found[1:]):
        raise SystemExit("the parts have different weights")
    weights = torch.from_numpy(array)
    alone = trained(new_model(), batches(steps, batch_size), 0, 1, TreeSum(1, len(weights)))[2]
    step_s = median(times_s[len(times_s) // 5 :])
    return {
        "parts": parts,
        "cores": share,
        "step_s": step_s,
        "samples_per_s": batch_size / step_s,
        "loss": loss,
        "accuracy": accuracy(weights),
        "difference": float((weights - alone).abs().max()),
    }


def trained(
    model: nn.Module, rows: Sequence[np.ndarray], part: int, parts: int, tree: TreeSum
) -> tuple[list[float], float, torch.Tensor]:
    """Seconds of every step, the last loss of this part, and the weights, of plain SGD on mean gradients."""
    images, labels = digits()  # a copy of the data for every part, in memory that its cores have touched
    parameters, times_s, loss = list(model.parameters()), [], torch.zeros(())
    for batch in rows:
        begin = time.perf_counter()
        own = torch.from_numpy(batch[part::parts])
        loss = functional.cross_entropy(model(images[own]), labels[own])
        gradients = torch.autograd.grad(loss, parameters)
        mean = tree.total(part, torch.cat([gradient.flatten() for gradient in gradients])) / parts
        with torch.no_grad():
            for parameter, gradient in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
                parameter -= RATE * gradient.view_as(parameter)
        times_s.append(time.perf_counter() - begin)
    return times_s, float(loss.detach()), nn.utils.parameters_to_vector(parameters).detach()


def batches(steps: int, batch_size: int) -> list[np.ndarray]:
    """Rows of the data for every step, the same in all parts."""
    draw = np.random.default_rng(0)
    return [draw.choice(len(load_digits().target), batch_size, replace=False) for _ in range(steps)]


def new_model() -> DigitsNet:
    """The same weights every time."""
    torch.manual_seed(0)
    return DigitsNet()


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images in [0, 1] and labels."""
    bunch = load_digits()
    return torch.tensor(bunch.images[:, None] / 16, dtype=torch.float32), torch.tensor(bunch.target)


def accuracy(weights: torch.Tensor) -> float:
    """On all images."""
    model = new_model()
    nn.utils.vector_to_parameters(weights, model.parameters())
    images, labels = digits()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def last_level_cache() -> int:
    """Bytes of the largest cache of the first core, as Linux tells; 32 MiB where it does not."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=32 * 2**20)


def parse_arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=256, help="samples of a step, shared by all parts")
    parser.add_argument("--fast-memory", metavar="SIZE", help='of the chip, as "16 GiB" (the last-level cache)')
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    main()
