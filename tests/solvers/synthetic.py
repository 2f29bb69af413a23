"""A graph with the block structure of Inception-V3: real shapes, roofline times, no torch.

Forward ops at ATen granularity (convolution, batch norm, relu, pool, cat), parameters as ops of zero time; the backward
has input gradients and weight gradients apart, so weight gradients float.
"""

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op

_FLOPS_PER_S = 8e12
_BYTES_PER_S = 700e9
_OVERHEAD_S = 5e-6


class _Builder:
    def __init__(self, batch: int, training: bool) -> None:
        self.batch, self.training = batch, training
        self.ops: list[Op] = []
        self.edges: list[Edge] = []
        self.shape: dict[str, tuple[int, int]] = {}
        self.tape: list[tuple[str, tuple[str, ...], str]] = []

    def add(self, name: str, shape: tuple[int, int], inputs: tuple[str, ...], flops: float = 0, weight: int = 0) -> str:
        channels, side = shape
        output = 4 * self.batch * channels * side * side
        moved = output + sum(self.bytes_of(name) for name in inputs)
        time_s = round(max(flops / _FLOPS_PER_S, moved / _BYTES_PER_S) + _OVERHEAD_S, 7)
        self.ops.append(Op(name, "test", time_s=time_s, output_bytes=output))
        self.shape[name] = shape
        for source in inputs:
            self.edges.append(Edge(source, name, self.bytes_of(source), tensor=f"{source}->{name}"))
        if weight:
            self.ops.append(Op(f"{name}.w", "parameter", time_s=0.0, weight_bytes=weight))
            self.edges.append(Edge(f"{name}.w", name, weight))
        return name

    def bytes_of(self, name: str) -> int:
        channels, side = self.shape[name]
        return 4 * self.batch * channels * side * side

    def conv(self, name: str, source: str, channels: int, kernel: tuple[int, int], side: int) -> str:
        deep, _ = self.shape[source]
        flops = 2.0 * self.batch * channels * side * side * deep * kernel[0] * kernel[1]
        weight = 4 * deep * channels * kernel[0] * kernel[1]
        shape = channels, side
        conv = self.add(f"{name}.conv", shape, (source,), flops, weight)
        self.tape.append(("conv", (source,), conv))
        norm = self.add(f"{name}.bn", shape, (conv,))
        self.tape.append(("pointwise", (conv,), norm))
        relu = self.add(f"{name}.relu", shape, (norm,))
        self.tape.append(("pointwise", (norm,), relu))
        return relu

    def chain(self, name: str, source: str, side: int, *layers: tuple[int, tuple[int, int]]) -> str:
        for number, (channels, kernel) in enumerate(layers):
            source = self.conv(f"{name}.{number}", source, channels, kernel, side)
        return source

    def pool(self, name: str, source: str, side: int) -> str:
        self.tape.append(("pointwise", (source,), name))
        return self.add(name, (self.shape[source][0], side), (source,))

    def cat(self, name: str, *sources: str) -> str:
        self.tape.append(("cat", sources, name))
        channels = sum(self.shape[source][0] for source in sources)
        return self.add(name, (channels, self.shape[sources[0]][1]), sources)

    def backward(self, last: str) -> None:
        gradients: dict[str, list[str]] = {last: [self.add("loss", (1, 1), (last,))]}
        by_name = {op.id: op for op in self.ops}
        for kind, sources, name in reversed(self.tape):
            arrived = gradients[name]
            if len(arrived) > 1:
                arrived = [self.add(f"{name}.sum", self.shape[name], tuple(arrived))]
            time_s = float(by_name[name].time_s or 0.0)
            for source in sources:
                needed = (arrived[0], source) if kind != "cat" else (arrived[0],)
                grad = self.add(f"{name}.grad.{source}", self.shape[source], needed)
                gradients.setdefault(source, []).append(grad)
                if kind == "conv":
                    self.ops[-1] = Op(grad, "test", time_s=time_s, output_bytes=self.bytes_of(source))
                    self.edges.append(Edge(f"{name}.w", grad, by_name[f"{name}.w"].weight_bytes))
                    weight = by_name[f"{name}.w"].weight_bytes
                    wgrad = f"{name}.wgrad"
                    self.ops.append(Op(wgrad, "test", time_s=time_s, output_bytes=weight))
                    self.edges.append(
                        Edge(arrived[0], wgrad, self.bytes_of(arrived[0]), tensor=f"{arrived[0]}->{wgrad}")
                    )
                    self.edges.append(Edge(source, wgrad, self.bytes_of(source), tensor=f"{source}->{wgrad}"))


def inception_like(training: bool, batch: int = 32, blocks: int = 11) -> OpGraph:
    """The graph; with all 11 blocks about 500 ops forward and 1,100 with the backward."""
    build = _Builder(batch, training)
    image = build.add("image", (3, 299), ())
    build.ops[-1] = Op("image", "input", time_s=0.0)
    here = build.conv("stem.0", image, 32, (3, 3), 149)
    here = build.conv("stem.1", here, 32, (3, 3), 147)
    here = build.conv("stem.2", here, 64, (3, 3), 147)
    here = build.pool("stem.pool1", here, 73)
    here = build.conv("stem.3", here, 80, (1, 1), 73)
    here = build.conv("stem.4", here, 192, (3, 3), 71)
    here = build.pool("stem.pool2", here, 35)
    for number, make in enumerate([_a, _a, _a, _b, _c, _c, _c, _c, _d, _e, _e][:blocks]):
        here = make(build, f"b{number}", here, number)
    here = build.pool("head.pool", here, 1)
    here = build.add("head.fc", (1000, 1), (here,), 2.0 * batch * 2048 * 1000)
    build.tape.append(("pointwise", ("head.pool",), "head.fc"))
    if training:
        build.backward(here)
    return OpGraph(tuple(build.ops), tuple(build.edges), name="inception-like")


def _a(build: _Builder, name: str, x: str, number: int) -> str:
    return build.cat(
        f"{name}.cat",
        build.chain(f"{name}.1x1", x, 35, (64, (1, 1))),
        build.chain(f"{name}.5x5", x, 35, (48, (1, 1)), (64, (5, 5))),
        build.chain(f"{name}.3x3", x, 35, (64, (1, 1)), (96, (3, 3)), (96, (3, 3))),
        build.chain(f"{name}.pool", build.pool(f"{name}.avg", x, 35), 35, (32 if number == 0 else 64, (1, 1))),
    )


def _b(build: _Builder, name: str, x: str, number: int) -> str:
    deep = build.chain(f"{name}.3x3a", x, 35, (64, (1, 1)), (96, (3, 3)))
    return build.cat(
        f"{name}.cat",
        build.conv(f"{name}.3x3", x, 384, (3, 3), 17),
        build.conv(f"{name}.3x3b", deep, 96, (3, 3), 17),
        build.pool(f"{name}.max", x, 17),
    )


def _c(build: _Builder, name: str, x: str, number: int) -> str:
    c = (128, 160, 160, 192)[number - 4]
    return build.cat(
        f"{name}.cat",
        build.chain(f"{name}.1x1", x, 17, (192, (1, 1))),
        build.chain(f"{name}.7x7", x, 17, (c, (1, 1)), (c, (1, 7)), (192, (7, 1))),
        build.chain(f"{name}.dbl", x, 17, (c, (1, 1)), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7))),
        build.chain(f"{name}.pool", build.pool(f"{name}.avg", x, 17), 17, (192, (1, 1))),
    )


def _d(build: _Builder, name: str, x: str, number: int) -> str:
    deep = build.chain(f"{name}.7x7", x, 17, (192, (1, 1)), (192, (1, 7)), (192, (7, 1)))
    return build.cat(
        f"{name}.cat",
        build.conv(f"{name}.3x3b", build.chain(f"{name}.3x3", x, 17, (192, (1, 1))), 320, (3, 3), 8),
        build.conv(f"{name}.7x7b", deep, 192, (3, 3), 8),
        build.pool(f"{name}.max", x, 8),
    )


def _e(build: _Builder, name: str, x: str, number: int) -> str:
    left = build.chain(f"{name}.3x3", x, 8, (384, (1, 1)))
    right = build.chain(f"{name}.dbl", x, 8, (448, (1, 1)), (384, (3, 3)))
    return build.cat(
        f"{name}.cat",
        build.chain(f"{name}.1x1", x, 8, (320, (1, 1))),
        build.conv(f"{name}.l1", left, 384, (1, 3), 8),
        build.conv(f"{name}.l2", left, 384, (3, 1), 8),
        build.conv(f"{name}.r1", right, 384, (1, 3), 8),
        build.conv(f"{name}.r2", right, 384, (3, 1), 8),
        build.chain(f"{name}.pool", build.pool(f"{name}.avg", x, 8), 8, (192, (1, 1))),
    )
