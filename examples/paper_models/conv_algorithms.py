"""Algorithms of a convolution as alternatives of its layer: time against workspace (section 3.1.2, eq. 6).

The paper prints no times. Here they follow from operations and from shares of a peak rate, which are assumptions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from paper_models.conv_net_memory import FLOAT_BYTES, ConvNet, fft_bytes, memory_bound_bytes

PASSES = 3
"""A training step convolves forward, for the gradient of the input, and for that of the filters."""
SHARES: Mapping[str, float] = {"GEMM": 0.6, "FFT": 0.3, "Winograd": 0.45}
"""Algorithm → the share of the peak rate that it reaches; assumed."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A layer by one algorithm: T_k,l in seconds and M_k,l in bytes."""

    algorithm: str
    time_s: float
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """The choice of eq. 6 for a mini-batch: an algorithm for each layer, and seconds of all convolutions."""

    algorithms: tuple[str, ...]
    time_s: float


def alternatives(
    net: ConvNet, batch: int, peak_flops_per_s: float, algorithms: Sequence[str]
) -> list[list[Alternative]]:
    """Every convolution by every algorithm that can do it.

    GEMM works in place. FFT transforms input, output and filters at the input's size and throws away what a stride
    skips. Winograd's F(2 x 2, 3 x 3) takes 16 products for 4 outputs, and needs filters of 3 x 3 at stride 1.
    """
    shapes, found = net.shapes, []
    for layer, (size, _, depth), (out_size, _, out_depth) in zip(net.features, shapes, shapes[1:], strict=False):
        if not layer.filters:
            continue
        pairs, products = depth * out_depth, 2 * batch * out_size**2 * layer.extent**2 * depth * out_depth
        planes = batch * (depth + out_depth) + pairs
        transforms = planes * 2.5 * size**2 * math.log2(size**2)
        tiles = ((out_size + 1) // 2) ** 2 * 16
        costs = {
            "GEMM": (float(products), 0),
            "FFT": (
                transforms + 8 * batch * pairs * size * (size // 2 + 1),
                fft_bytes(batch, size, (depth, out_depth)),
            ),
        }
        if layer.extent == 3 and layer.stride == 1:
            workspace = FLOAT_BYTES * (tiles * batch * (depth + out_depth) + 16 * pairs)
            costs["Winograd"] = products / 2.25, workspace
        found.append(
            [
                Alternative(name, PASSES * flops / (SHARES[name] * peak_flops_per_s), workspace)
                for name, (flops, workspace) in costs.items()
                if name in algorithms
            ]
        )
    return found


def best_step(
    net: ConvNet, batch: int, device_bytes: int, peak_flops_per_s: float, algorithms: Sequence[str] = ("GEMM", "FFT")
) -> Step | None:
    """Eq. 6, solved by trying every choice: least time within M_bound; None if the mini-batch does not fit."""
    bound_bytes = memory_bound_bytes(net, batch, device_bytes)
    fitting = (
        chosen
        for chosen in product(*alternatives(net, batch, peak_flops_per_s, algorithms))
        if sum(each.workspace_bytes for each in chosen) <= bound_bytes
    )
    best = min(fitting, key=lambda chosen: sum(each.time_s for each in chosen), default=None)
    if best is None:
        return None
    return Step(tuple(each.algorithm for each in best), sum(each.time_s for each in best))
