"""Memory of a convolutional network from its layer dimensions (section 3.1.3, eq. 1–5), in bytes.

The paper counts bits and prints two slips: eq. 3 takes the depth of a layer's output for that of its input, and eq. 4
counts one bias for every fully connected layer but the first. `paper_literal` reproduces what is printed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dlplacer.core.errors import InputError

FLOAT_BYTES = 4
_COPIES = 3
"""Parameters, their gradients for an instance, and the gradients summed over the mini-batch."""


@dataclass(frozen=True, slots=True)
class FeatureLayer:
    """A convolution (`filters` > 0) or a pooling (`filters` = 0): spatial extent F, stride S, padding P, filters K."""

    extent: int
    stride: int = 1
    padding: int = 0
    filters: int = 0

    def __post_init__(self) -> None:
        if self.extent < 1 or self.stride < 1 or self.padding < 0 or self.filters < 0:
            raise InputError(f"layer {self}: extent and stride must be at least 1, padding and filters at least 0")


@dataclass(frozen=True)
class ConvNet:
    """A network of feature layers on inputs of (width, height, depth), followed by fully connected layers of
    neurons."""

    input_shape: tuple[int, int, int]
    features: tuple[FeatureLayer, ...]
    neurons: tuple[int, ...] = ()
    floor: bool = True

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """(B_i, H_i, D_i) for i = 0..n (eq. 1).

        Raises
        ------
        InputError
            If a size is not whole and `floor` is off, or a layer leaves nothing.
        """
        shapes = [self.input_shape]
        for number, layer in enumerate(self.features, start=1):
            sizes = []
            for size in shapes[-1][:2]:
                span = size - layer.extent + 2 * layer.padding
                if span < 0 or (span % layer.stride and not self.floor):
                    raise InputError(
                        f"feature layer {number}: a filter of {layer.extent} with stride {layer.stride} and padding "
                        f"{layer.padding} does not fit a size of {size}; change one of them"
                    )
                sizes.append(span // layer.stride + 1)
            shapes.append((sizes[0], sizes[1], layer.filters or shapes[-1][2]))
        return tuple(shapes)


def feature_map_bytes(net: ConvNet, batch: int) -> int:
    """M_FM: input and outputs of all feature layers (eq. 2)."""
    return FLOAT_BYTES * batch * sum(width * height * depth for width, height, depth in net.shapes)


def feature_parameter_bytes(net: ConvNet, paper_literal: bool = False) -> int:
    """M_MP: weights and biases of the convolutions, three times (eq. 3)."""
    shapes = net.shapes
    count = 0
    for number, layer in enumerate(net.features, start=1):
        depth = shapes[number if paper_literal else number - 1][2]
        count += (layer.extent**2 * depth + 1) * layer.filters
    return FLOAT_BYTES * _COPIES * count


def classifier_bytes(net: ConvNet, batch: int = 1, paper_literal: bool = False) -> int:
    """M_C: outputs and parameters of the fully connected layers (eq. 4).

    As printed, outputs are those of one instance, the weights from the last feature map to the first layer are missing
    unless that layer is the flattened map, and m − 1 biases are counted.
    """
    neurons = net.neurons
    pairs = list(pairwise(neurons))
    if paper_literal:
        parameters = sum(a * b for a, b in pairs) + max(0, len(neurons) - 1)
        return FLOAT_BYTES * (sum(neurons) + _COPIES * parameters)
    width, height, depth = net.shapes[-1]
    pairs = [(width * height * depth, neurons[0]), *pairs] if neurons else []
    return FLOAT_BYTES * (batch * sum(neurons) + _COPIES * sum((a + 1) * b for a, b in pairs))


def memory_bound_bytes(net: ConvNet, batch: int, device_bytes: int, paper_literal: bool = False) -> int:
    """M_bound: what a device has left for the algorithms' workspaces (eq. 5); negative where the batch does not fit."""
    fixed = feature_map_bytes(net, batch) + feature_parameter_bytes(net, paper_literal)
    return device_bytes - fixed - classifier_bytes(net, batch, paper_literal)


def gemm_bytes(batch: int, sizes: Sequence[int], depths: Sequence[int]) -> int:
    """Input and output of a convolution as a matrix product, square maps of `sizes` and `depths` (in, out)."""
    return FLOAT_BYTES * batch * sum(depth * size**2 for size, depth in zip(sizes, depths, strict=True))


def fft_bytes(batch: int, size: int, depths: Sequence[int]) -> int:
    """Half-complex transforms of input, output and filters at the input's size."""
    transform = size * (size // 2 + 1) * 2
    planes = batch * depths[0] + batch * depths[1] + depths[0] * depths[1]
    return FLOAT_BYTES * planes * transform
