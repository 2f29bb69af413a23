"""Numbers of iBatch (batching parameter communication with forward computation) that its text determines.

Run it: ``python examples/paper_002_ibatch.py``; with ``--json`` it prints a list of rows.
Beside them, how far its two greedy algorithms and simple policies are from the exact optimum on random chains.
"""

import random
from statistics import mean

from _paper_table import Number, Unreproducible, report

from dlplacer.data_parallel.groups import LayerChain
from dlplacer.data_parallel.groups.policies import compare_groupings

FAMILIES = ("uniform", "CNN-like", "transformer-like")
CASES = ((0.3, 0.1), (1.0, 0.1), (1.0, 1.0), (3.0, 0.1), (3.0, 1.0))
INSTANCES = 400


def main() -> None:
    """Print the table."""
    numbers = [
        Number("72 nodes, VGG19-22K: over the default parameter server, percent", 73, 100 * (45 / 26 - 1), (45, 26)),
        Number("72 nodes, VGG19-22K: over layer by layer, percent", 41, 100 * (45 / 32 - 1), (45, 32)),
    ]
    for family in FAMILIES:
        for ratio, startup in CASES:
            missed, gap = greedy_gap(family, ratio, startup)
            case = f"{family}, communication/computation {ratio:g}, T_s {startup:g}"
            numbers.append(
                Number(f"best of both greedies misses the optimum, percent; {case}", None, missed, assumed=_CHAINS)
            )
            numbers.append(Number(f"best of both greedies, mean gap in percent; {case}", None, gap, assumed=_CHAINS))
    report("iBatch: batches of parameters and forward computation", numbers, _MISSING)


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
        found = {grouping.policy: grouping.makespan_s for grouping in compare_groupings(chain)}
        gaps.append(min(found["greedy-front"], found["greedy-back"]) / found["optimal"] - 1)
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


_CHAINS = "random chains"
_MISSING = (
    Unreproducible("Figures 3 and 5 to 7", "layer times, start-up cost and bandwidths are in figures only"),
    Unreproducible("Speedups of 21x to 29x on 30 nodes", "listed without T_s, bandwidth or work of a layer"),
    Unreproducible("Figure 4(c): batches 1-5, 6-10, 11-12", "the layer times behind it are not in the text"),
)


if __name__ == "__main__":
    main()
