"""Numbers of iBatch (batching parameter communication with forward computation) that its text determines.

Run it: ``python examples/paper_002_ibatch.py``; with ``--json`` it prints a list of rows.
Beside them, how far its two greedy algorithms and simple policies are from the exact optimum on random chains.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from statistics import mean

from _paper_table import Page, Row, Undetermined, assumed, report, stated
from paper_models.ibatch_greedy import greedy_back, greedy_front
from paper_models.server_pull import Blades, best_of_count, speedup

from dlplacer.core.graph import OpGraph
from dlplacer.data_parallel.groups import LayerChain, best_groups, makespan_s

Grouped = Callable[[LayerChain], tuple[int, ...]]
FAMILIES = ("uniform", "CNN-like", "transformer-like")
CASES = ((0.3, 0.1), (1.0, 0.1), (1.0, 1.0), (3.0, 0.1), (3.0, 1.0))
INSTANCES = 400
NETWORKS = ("GoogLeNet", "Inception-V3", "VGG19", "VGG19-22K")
# Speedups on 30 nodes (evaluation): default parameter server, layer by layer, iBatch; for each of the networks.
AT_30 = {"default": (26, 25, 23, 22), "layer by layer": (25, 24, 22, 21), "iBatch": (29, 28, 26, 25)}
AT_72 = {"default": 26, "layer by layer": 32, "iBatch": 45}
MILLIONS = {"GoogLeNet": 5, "Inception-V3": 27, "VGG19": 143, "VGG19-22K": 229}
WHERE, TABLE = "evaluation", "table 1"
_THREE = "the text says that three batches are faster than layer by layer; at a ratio of 1 they are not faster"
_SHAPE = {
    "GoogLeNet": "rates, start-up and servers are assumed; only the shape counts",
    "VGG19": "rates, start-up and servers are assumed; layer by layer is slower than the default in the text, not here",
}


def _percent_more(more: float, less: float) -> float:
    return 100 * (more / less - 1)


def _scaling() -> list[Row]:
    nodes = stated("nodes", 30, WHERE)
    rows = []
    for place, network in enumerate(NETWORKS):
        at = {name: stated(f"speedup, {name}", speedups[place], WHERE) for name, speedups in AT_30.items()}
        rows += [
            Row(f"{network}, 30 nodes: iBatch over {name}, %", WHERE, None, _percent_more, (at["iBatch"], at[name]))
            for name in ("default", "layer by layer")
        ]
        rows.append(
            Row(f"{network}, 30 nodes: efficiency of iBatch", WHERE, None, lambda su, n: su / n, (at["iBatch"], nodes))
        )
    note = "by these speedups layer by layer is slower than the default, which contradicts the text around them"
    first = stated("layer by layer", AT_30["layer by layer"][0], WHERE), stated("default", AT_30["default"][0], WHERE)
    rows.append(Row("GoogLeNet, 30 nodes: layer by layer over default, %", WHERE, None, _percent_more, first, note))
    at = {name: stated(f"speedup on 72 nodes, {name}", speedup, WHERE) for name, speedup in AT_72.items()}
    for name, text in (("default", "73"), ("layer by layer", "41")):
        rows.append(
            Row(f"VGG19-22K, 72 nodes: iBatch over {name}, %", WHERE, text, _percent_more, (at["iBatch"], at[name]))
        )
    return rows


def _most_hidden() -> list[Row]:
    """The largest speedup that hiding the whole forward pass could reach, from the default's at the same nodes."""
    share = assumed("share of the forward pass in a step without communication", 1 / 3)
    half = assumed("half of the communication is the pull, which alone can hide behind the forward pass")
    rows = []
    for count, networks, table in ((30, NETWORKS, AT_30), (72, NETWORKS[3:], None)):
        for place, network in enumerate(networks):
            default, best = ((table[name][place] if table else AT_72[name]) for name in ("default", "iBatch"))
            rows.append(
                Row(
                    f"{network}, {count} nodes: speedup if all of the forward pass hides, from the default's",
                    WHERE,
                    str(best),
                    lambda nodes, speedup, share: nodes / (nodes / speedup - min(share, (nodes / speedup - 1) / 2)),
                    (stated("nodes", count, WHERE), stated("speedup, default", default, WHERE), share, half),
                    "an upper bound; if the text's speedup is higher, hiding the pull does not explain it",
                )
            )
    return rows


def planned() -> tuple[Row, ...]:
    """Shipped GoogLeNet and VGG-19 on the text's cluster: three batches against layer by layer, and up to 72 nodes."""
    import dlplacer as dp
    from dlplacer import models

    cluster = stated("blade servers", 8, "evaluation"), stated("Ethernet, Gbit/s", 10, "evaluation")
    others = assumed(
        "the shipped model in float32; a backward pass of two forward passes, a push as long as a pull; parameters "
        "spread evenly over the nodes' blades, whose nodes share a card"
    )
    cut = assumed("layers: VGG19's 19; GoogLeNet's 12, its second and third convolution as one")
    node = assumed("mini-batch of a node", 32), assumed("GFLOP/s of a node", 100.0), others, cut
    startups = [assumed("T_s in ms", value) for value in (10.0, 100.0)]
    rows = []
    for name, make in {"GoogLeNet": models.googlenet, "VGG19": models.vgg19}.items():
        layers = layers_of(dp.capture(make(batch_size=32)))
        rows += [
            Row(
                f"{name}, 6 nodes, T_s {startup.value:g} ms: {label} over the best three batches, ratio of times",
                "case study, figure 4" if name == "GoogLeNet" else "figure 4's comparison, for VGG19",
                None,
                partial(_over_three, layers, cuts_of),
                (*cluster, startup, *node),
                _THREE if (name, label) == ("GoogLeNet", "layer by layer") else "",
            )
            for startup in startups
            for label, cuts_of in (("layer by layer", _each), ("one pull", _single))
        ]
        rows += [
            Row(
                f"{name}: speedup on {nodes} nodes, {label}",
                "figure 5",
                str(AT_30[label.split(",")[0]][NETWORKS.index(name)]) if nodes == 30 else None,
                partial(_scaled, layers, cuts_of, nodes),
                (*cluster, startups[-1], *node),
                _SHAPE[name] if nodes == 30 else "rates, start-up and servers are assumed; only the shape counts",
            )
            for nodes in (6, 30, 72)
            for label, cuts_of in (("default", _single), ("layer by layer", _each), ("iBatch, exact", best_groups))
        ]
    return tuple(rows)


def layers_of(graph: OpGraph) -> LayerChain:
    """Top-level modules with parameters, their bytes and their forward FLOPs in GFLOP, in the order of their names.

    GoogLeNet has 12 as in the text, where its second and third convolution are one; VGG-19 has its 19.
    """
    sizes: dict[str, int] = {}
    work: dict[str, float] = {}
    for op in graph.ops:
        parts = (op.module or "").split(".")
        layer = ".".join(parts[:2]) if parts[0] in ("features", "classifier") else parts[0].replace("conv3", "conv2")
        if op.kind == "parameter":
            sizes[layer] = sizes.get(layer, 0) + op.weight_bytes
        elif op.phase == "forward":
            work[layer] = work.get(layer, 0.0) + op.flops / 1e9
    names = tuple(name for name in work if name in sizes)
    zeros = (0.0,) * len(names)
    return LayerChain(0.0, zeros, tuple(work[name] for name in names), tuple(sizes[name] for name in names), names)


def _on(
    layers: LayerChain, blades: float, gigabits: float, startup_ms: float, rate: float
) -> tuple[LayerChain, Blades]:
    """The layers with seconds on a node of so many GFLOP/s, and the cluster."""
    timed = replace(layers, compute_s=tuple(work / rate for work in layers.compute_s))
    return timed, Blades(int(blades), gigabits * 1e9 / 8, startup_ms / 1e3)


def _each(chain: LayerChain) -> tuple[int, ...]:
    return tuple(range(1, chain.layer_count + 1))


def _single(chain: LayerChain) -> tuple[int, ...]:
    return (chain.layer_count,)


def _over_three(
    layers: LayerChain, cuts_of: Grouped, blades: float, gigabits: float, ms: float, _: float, rate: float
) -> float:
    timed, cluster = _on(layers, blades, gigabits, ms, rate)
    chain = cluster.chain(timed, 6)
    return makespan_s(chain, cuts_of(chain)) / makespan_s(chain, best_of_count(chain, 3))


def _scaled(
    layers: LayerChain, cuts_of: Grouped, nodes: int, blades: float, gigabits: float, ms: float, _: float, rate: float
) -> float:
    timed, cluster = _on(layers, blades, gigabits, ms, rate)
    return speedup(timed, cluster, nodes, cuts_of(cluster.chain(timed, nodes)))


def _sizes() -> list[Row]:
    base = assumed("parameters of VGG-19 for 1,000 classes", 143_667_240)
    features = assumed("inputs of its last layer", 4096)
    classes = stated("classes of ImageNet22K", 21841, WHERE)
    rows = [
        Row(
            "VGG19's parameters, millions",
            TABLE,
            "143",
            lambda count: count / 1e6,
            (base,),
            "the text omits the fraction",
        ),
        Row(
            "VGG19-22K's parameters, millions",
            TABLE,
            "229",
            lambda count, width, classes: (count + (width + 1) * (classes - 1000)) / 1e6,
            (base, features, classes),
        ),
    ]
    gigabits = stated("Ethernet, Gbit/s", 10, WHERE)
    for network, millions in MILLIONS.items():
        inputs = stated("parameters, millions", millions, TABLE), gigabits, assumed("bytes of a parameter", 4)
        rows.append(
            Row(
                f"{network}: milliseconds of a pull in float32 over one card",
                TABLE,
                None,
                lambda count, rate, size: count * size * 8 / rate,
                inputs,
            )
        )
    layers, batches = stated("layers", 12, "figure 4"), stated("batches", 3, "figure 4(c)")
    rows.append(Row("Start-ups that batches save", "figure 4", None, lambda a, b: a - b, (layers, batches)))
    return rows


def _greedy() -> list[Row]:
    rows = []
    drawn = assumed(f"{INSTANCES} random chains of 8 to 32 layers, times drawn by `random_chain`")
    reading = assumed(
        "algorithms 1, 2 as `ibatch_greedy` reads them: smallest l2, and fallbacks that the text leaves open"
    )
    for family in FAMILIES:
        for ratio, startup in CASES:
            inputs = (
                assumed("communication over computation", ratio),
                assumed("T_s over a layer's mean transfer", startup),
                drawn,
                reading,
            )
            case = f"{family}, communication {ratio:g}, T_s {startup:g}"
            rows += [
                Row(
                    f"Better greedy misses the optimum, %; {case}",
                    "algorithms 1, 2",
                    None,
                    partial(_missed, family),
                    inputs,
                ),
                Row(
                    f"Better greedy above the optimum, mean %; {case}",
                    "algorithms 1, 2",
                    None,
                    partial(_gap, family),
                    inputs,
                ),
            ]
    return rows


def _missed(family: str, ratio: float, startup: float) -> float:
    return greedy_gap(family, ratio, startup)[0]


def _gap(family: str, ratio: float, startup: float) -> float:
    return greedy_gap(family, ratio, startup)[1]


@cache
def greedy_gap(family: str, ratio: float, startup: float) -> tuple[float, float]:
    """Percent of random chains where the better greedy misses the optimum, and its mean gap in percent.

    Parameters
    ----------
    ratio
        Communication over computation.
    startup
        T_s in units of the mean transfer of a layer.
    """
    draw = random.Random(f"{family} {ratio} {startup}")
    gaps = []
    for _ in range(INSTANCES):
        chain = random_chain(draw, family, ratio, startup)
        greedy_s = min(makespan_s(chain, cuts) for cuts in (greedy_front(chain), greedy_back(chain)))
        gaps.append(greedy_s / makespan_s(chain, best_groups(chain)) - 1)
    return 100 * mean(gap > 1e-9 for gap in gaps), 100 * mean(gaps)


def random_chain(draw: random.Random, family: str, ratio: float, startup: float) -> LayerChain:
    """8 to 32 layers; CNN-like: parameters grow and computation shrinks with depth; transformer-like: equal blocks."""
    count = draw.randint(8, 32)
    depth = [position / count for position in range(count)]
    if family == "uniform":
        transfers, computes = [draw.random() for _ in depth], [draw.random() for _ in depth]
    elif family == "CNN-like":
        transfers = [8**at * draw.uniform(0.5, 1.5) for at in depth]
        computes = [8 ** (1 - at) * draw.uniform(0.5, 1.5) for at in depth]
    else:
        transfers, computes = [draw.uniform(0.9, 1.1) for _ in depth], [draw.uniform(0.9, 1.1) for _ in depth]
    scale = ratio * sum(computes) / sum(transfers)
    transfers = [scale * each for each in transfers]
    return LayerChain(startup * mean(transfers), tuple(transfers), tuple(computes))


PAGE = Page(
    "iBatch: batches of parameters and forward computation",
    (*_scaling(), *_most_hidden(), *_sizes(), *_greedy()),
    (
        Undetermined("Figures 3 and 5 to 7", "layer times and start-up cost are only in figures"),
        Undetermined(
            "Speedups of 21x to 29x on 30 nodes", "the text gives no T_s, no bandwidth of a node and no work of a layer"
        ),
        Undetermined(
            "Figure 4(c): batches 1-5, 6-10, 11-12", "the layer times that lead to these batches are not in the text"
        ),
    ),
)


if __name__ == "__main__":
    report(PAGE)
