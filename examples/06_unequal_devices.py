"""Where the layers of a decoder go on two devices of unequal speed: predicted, and measured beside other splits.

1. A decoder as Llama's, with random weights, decodes one token after a cached context. Its devices are two CPU cores;
   processes that do nothing else take turns on the second one, which two of them leave with a third of its time.
2. The rate at which each core reads weights is measured on the layers; the first core has room for a part of the model.
3. `dp.fit` places the parts, and the tool's own runtime runs this placement, an even split and a greedy fill, whose
   steps alternate in one run.

Run it: ``python examples/06_unequal_devices.py``; with ``--json`` it prints the figures alone.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import dlplacer as dp
from dlplacer.machines.costs.device_table import EFFICIENCY
from dlplacer.planning.interrupt import end_with_parent

HEADS, KEY_VALUE_HEADS = 8, 4


class Layer(nn.Module):
    """Attention over cached keys and values, and a gated MLP."""

    def __init__(self, hidden: int, inner: int, context: int) -> None:
        super().__init__()
        width = hidden // HEADS
        self.norm, self.mlp_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.query, self.out = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.key, self.value = (nn.Linear(hidden, KEY_VALUE_HEADS * width, bias=False) for _ in range(2))
        self.register_buffer("keys", torch.randn(1, KEY_VALUE_HEADS, context - 1, width))
        self.register_buffer("values", torch.randn(1, KEY_VALUE_HEADS, context - 1, width))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        query = self.query(normed).view(1, HEADS, 1, -1)
        key, value = (part(normed).view(1, KEY_VALUE_HEADS, 1, -1) for part in (self.key, self.value))
        keys, values = torch.cat([self.keys, key], 2), torch.cat([self.values, value], 2)
        grouped = query.view(1, KEY_VALUE_HEADS, HEADS // KEY_VALUE_HEADS, -1)
        weights = torch.softmax(grouped @ keys.transpose(2, 3) / query.shape[-1] ** 0.5, dim=-1)
        x = x + self.out((weights @ values).view(1, 1, -1))
        normed = self.mlp_norm(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    """Embedding and layers."""

    def __init__(self, shape: argparse.Namespace) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape.hidden, shape.inner, shape.context) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)

    def forward(self, token: Tensor) -> Tensor:
        x = self.embed_tokens(token)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Decoder(nn.Module):
    """One decode step: the logits of the next token. Modules are named as in Llama's checkpoints."""

    def __init__(self, shape: argparse.Namespace) -> None:
        super().__init__()
        self.model, self.lm_head = Model(shape), nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, token: Tensor) -> Tensor:
        return self.lm_head(self.model(token))


def main() -> None:
    shape = parse_arguments()
    torch.manual_seed(0)
    model = Decoder(shape).eval()
    size = bytes_of(model)
    cores = sorted(os.sched_getaffinity(0))[:2]
    with slowed(cores[1], shape.rivals):
        rates = [read_bytes_per_s(model.model.layers, shape.hidden, core) for core in cores]
        fit = fitted(shape, two_cores(rates, (int(shape.room * size), 2 * size)))
        splits = {"fit": homes_of(fit.plan)}
        for split in fit.alternatives:
            if split.name in ("even", "greedy") and split.value_s is not None:
                splits[split.name] = homes_by_counts(splits["fit"], split.layers)
        predicted = {"fit": fit.value_s, **{one.name: one.value_s for one in fit.alternatives}}
        measured, error = measured_s(model, splits, two_cores(rates, (None, None)), shape.steps)
    rows = [
        {
            "split": name,
            "layers": [
                sum(home == device and ".layers." in module for module, home in homes.items())
                for device in ("cpu0", "cpu1")
            ],
            "predicted_tokens_per_s": 1 / predicted[name],
            "measured_tokens_per_s": 1 / measured[name],
            "predicted_ratio": predicted[name] / predicted["fit"],
            "measured_ratio": measured[name] / measured["fit"],
        }
        for name, homes in splits.items()
    ]
    found = {"read_bytes_per_s": rates, "gap": fit.gap, "binds": fit.binds, "max_abs_error": error, "splits": rows}
    print(json.dumps(found, indent=2) if shape.json else told(found))


@contextmanager
def slowed(core: int, rivals: int) -> Iterator[None]:
    """A core that other processes share."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_spin, args=(core, os.getpid())) for _ in range(rivals)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _spin(core: int, parent: int) -> None:
    end_with_parent(parent)
    os.sched_setaffinity(0, {core})
    while True:
        pass


def read_bytes_per_s(layers: nn.ModuleList, hidden: int, core: int, seconds: float = 1.0) -> float:
    """Bytes of weights and cache per second, as a core decodes through layers that together exceed its caches."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    try:
        x, spent_s, until = torch.randn(1, 1, hidden), [], time.monotonic() + seconds
        while time.monotonic() < until or len(spent_s) < 3:
            began = time.perf_counter()
            with torch.inference_mode():
                for layer in layers:
                    layer(x)
            spent_s.append(time.perf_counter() - began)
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)
    return bytes_of(layers) / median(spent_s)


def bytes_of(module: nn.Module) -> int:
    """Bytes of weights and buffers."""
    return sum(each.numel() * each.element_size() for each in (*module.parameters(), *module.buffers()))


def two_cores(rates: Sequence[float], rooms: Sequence[int | None]) -> dp.Topology:
    """Two cores that read weights at these rates and have room for so many bytes."""
    # The roofline takes a share of a peak rate; these rates are what is reached.
    devices = [
        dp.Device(f"cpu{number}", f"core{number}", room, 1e12, rate / EFFICIENCY.value, {}, 0.0, asynchronous=False)
        for number, (room, rate) in enumerate(zip(rooms, rates, strict=True))
    ]
    return dp.Topology(devices, links=[dp.Link("cpu0", "cpu1", 1e10, 30e-6)], name="two unequal cores")


def fitted(shape: argparse.Namespace, machine: dp.Topology) -> Any:
    """The best placement of the decoder's parts."""
    config = {
        "model_type": "llama",
        "dtype": "float32",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": False,
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        return dp.fit(path, machine, context=shape.context, cache="float32", reserve_bytes=0, chunk=1, fine="layers")


def homes_of(plan: dp.Plan) -> dict[str, str]:
    """Path of a module → its device."""
    ops = plan.graph.ops
    return {
        module.split(".self_attn")[0].split(".mlp")[0]: plan.placement[op.id]
        for op in ops
        for module in op.meta["modules"]
    }


def homes_by_counts(homes: dict[str, str], counts: Sequence[int]) -> dict[str, str]:
    """Path of a module → its device, by the layers of each device; what stands before and behind goes with them."""
    devices = [f"cpu{device}" for device, count in enumerate(counts) for _ in range(count)]
    return {
        module: devices[int(module.split(".")[2])] if ".layers." in module else devices[0 if "embed" in module else -1]
        for module in homes
    }


def measured_s(
    model: Decoder, splits: dict[str, dict[str, str]], machine: dp.Topology, steps: int
) -> tuple[dict[str, float], float]:
    """Split → seconds of a token on this machine; and the largest difference of any logit."""
    job = dp.Job(model, args=(torch.zeros(1, 1, dtype=torch.long),), mode="infer")
    graph = dp.capture(job)
    plans = {name: dp.place(graph, machine, method="heft", pins=homes).plan for name, homes in splits.items()}
    figures = {
        name: dp.run(job, plan, "cpu:0,cpu:1", steps=steps, compile_baseline=False).report
        for name, plan in plans.items()
    }
    error = max(each.max_abs_error for each in figures.values())
    return {name: each.measured_s for name, each in figures.items()}, error


def told(found: dict[str, Any]) -> str:
    """The figures as a table."""
    first, second = (rate / 1e9 for rate in found["read_bytes_per_s"])
    lines = [f"weights are read at {first:.1f} and {second:.1f} GB/s; {found['binds']} binds, gap {found['gap']:.2g}"]
    lines.append(
        f"{'':12} {'layers':>8} {'tokens/s predicted':>20} {'measured':>10} {'ratio predicted':>17} {'measured':>10}"
    )
    for row in found["splits"]:
        layers = ",".join(map(str, row["layers"]))
        rates = f"{row['predicted_tokens_per_s']:20.1f} {row['measured_tokens_per_s']:10.1f}"
        lines.append(
            f"{row['split']:12} {layers:>8} {rates} {row['predicted_ratio']:17.2f} {row['measured_ratio']:10.2f}"
        )
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--inner", type=int, default=1408)
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--room", type=float, default=0.6, help="share of the model that the faster core holds")
    parser.add_argument("--rivals", type=int, default=2, help="processes that share the second core")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
