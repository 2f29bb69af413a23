"""Captures of models that are not small: nothing is allocated, and it does not take long."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

import dlplacer
from dlplacer.files.load import load_graph
from dlplacer.frontend import capture
from dlplacer.models import inception_v3

pytestmark = pytest.mark.xdist_group("capture scale")  # Inception-V3 is captured once

# The peak of this program alone: getrusage would count that of the process that started it.
PEAK = """
def peak_kib():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
"""

# Four layers of width 6,144 with a feed-forward part of four times that: 4·12·6144² = 1.8 billion weights, 7.2 GB.
LARGE = """
import torch
from torch import nn
import dlplacer

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.packed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        heads = [part.unflatten(-1, (-1, 128)).transpose(1, 2) for part in self.packed(self.norms[0](x)).chunk(3, -1)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))

with torch.device("meta"):
    module = nn.Sequential(*(Block(6144) for _ in range(4)))
    tokens = torch.empty(8, 1024, 6144)
graph = dlplacer.capture(dlplacer.Job(module, (tokens,), (), lambda output: output.square().mean()))
weights = sum(op.weight_bytes for op in graph.ops)
print(weights, peak_kib(), len(graph.ops))
"""


def printed(code: str) -> list[float]:
    """The numbers that a program prints, run by itself."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PEAK + code],
        env={**os.environ, "PYTHONPATH": str(Path(dlplacer.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    return [float(number) for number in done.stdout.split()]


def test_a_model_of_several_gigabytes_is_captured_in_less_than_one() -> None:
    weight_bytes, peak_kib, ops = printed(LARGE)
    assert weight_bytes > 1.5e9 * 4
    assert peak_kib * 1024 < 1e9
    assert ops > 100


@pytest.fixture(scope="module")
def inception() -> tuple[dlplacer.OpGraph, float]:
    with FakeTensorMode():
        job = inception_v3(batch_size=32)
    begin = time.process_time()
    graph = capture(job)
    return graph, time.process_time() - begin


def test_inception_v3_has_its_ops(inception: tuple[dlplacer.OpGraph, float]) -> None:
    graph, cpu_s = inception
    kinds = Counter(op.kind for op in graph.ops)
    assert kinds["aten.convolution"] == 94
    assert kinds["aten._native_batch_norm_legit_functional"] == kinds["aten.native_batch_norm_backward"] == 94
    # All but the first convolution have an input gradient to split off: 93·2 + 1.
    assert kinds["aten.convolution_backward"] == 187
    assert kinds["parameter"] == kinds["gradient"] == 3 * 94 + 2
    assert kinds["buffer"] == kinds["mutation"] == 3 * 94
    assert cpu_s < 150  # takes about 5 s


def test_the_shipped_graph_of_inception_v3_is_what_is_captured(inception: tuple[dlplacer.OpGraph, float]) -> None:
    shipped = load_graph("inception_v3-train")
    assert shipped.structure_sha256 == inception[0].structure_sha256
