"""Numbers of TernGrad (Wen et al. 2017) that its text determines.

Run it: ``python examples/paper_004_terngrad.py``; ``--json`` prints a list of rows, ``--output demo`` draws figure 5.
What is measured on digits is in ``paper_004_digits.py``.
"""

import math
from itertools import product
from pathlib import Path

from _paper_table import Given, Page, Row, Undetermined, assumed, fitted, report, stated
from paper_models.ternary_noise import GaussianNoise, gaussian_noise, sampled_zero_share
from paper_models.ternary_throughput import Cluster, GpuWorkload, samples_per_s, ternary_speedups
from paper_models.ternary_transports import ideal_pull_ratio, stops_paying_at

from dlplacer.planning.hybrid import CriticalBatch, StatisticalEfficiency

# Table 1: mini-batch, thousands of iterations, accuracy in percent with float gradients and ternary ones, the loss.
TABLE_1 = ((128, 300, 86.56, 85.64, "-0.92"), (2048, 18.75, 83.19, 82.80, "-0.39"))
# Table 2 (AlexNet, top-1 in percent): mini-batch, thousands of iterations, float, ternary.
TABLE_2 = ((256, 370, 57.33, 57.61), (512, 185, 57.32, 57.28), (1024, 92.5, 56.62, 57.54))
NO_CLIP = 54.63
# Table 3 (GoogLeNet, top-5 in percent): mini-batch, thousands of iterations, float, ternary.
TABLE_3 = ((128, 600, 88.30, 86.77), (256, 300, 87.82, 85.96), (512, 300, 89.00, 86.47))
NETWORKS = {"AlexNet": 60_965_224, "GoogLeNet": 6_998_552, "VggNet-A": 132_863_336}
"""Parameters of figure 5's networks, by their architectures."""

CLIP = assumed("clip c, in σ, lost in the text", 2.5)
GAUSSIAN = assumed("a Gaussian gradient")
LEVELS = stated("levels", 3, "abstract")
FLOAT = assumed("bits of a float, lost in the text", 32)
# Not the paper's: a step of 0.3 s on one GPU, 4 GPUs to a machine on a PCIe switch, Ethernet and InfiniBand.
STEP_S, BATCH = 0.3, 128
FAST = "100 Gbit/s and NVLink"
CLUSTERS = {"1 Gbit/s and PCIe": Cluster(4, 10e9, 6e9, 0.125e9, 50e-6), FAST: Cluster(4, 40e9, 10e9, 12.5e9, 2e-6)}
DOUBLED = "VggNet-A", "weak", FAST, 512
"""Where the text has double the speed: on 128 nodes with InfiniBand and NVLink; it does not name the scaling."""


RATES = {
    "1 Gbit/s and PCIe": "GPU to GPU 10, CPU to GPU 6, network 0.125 GB/s, 50 us",
    FAST: "GPU to GPU 40, CPU to GPU 10, network 12.5 GB/s, 2 us",
}
RECALLED = assumed(
    "eq. 27 to 30 as recalled, as their symbols are lost; the whole gradient ternary: 2 bits pushed, "
    "ceil(log2(2N + 1)) pulled, the mean of both of 32 bits"
)
WEAK = fitted("weak scaling, and a step of 0.3 s")
_CHOSEN = "128 nodes of 4 GPUs; strong scaling gives 4.9, a step of 0.1 s gives 3.4, and a step of 1 s gives 1.3"


def _difference(after: float, before: float) -> float:
    return after - before


def _codes() -> list[Row]:
    rows = [
        Row(
            "Reduction of pushed gradients, 32 / log2 3",
            "section 3.1",
            None,
            lambda levels, bits: bits / math.log2(levels),
            (LEVELS, FLOAT),
        ),
        Row(
            "Reduction with 2 bits for a code",
            "section 3.1",
            None,
            lambda bits, wide: wide / bits,
            (stated("bits", 2, "section 3.1"), FLOAT),
        ),
    ]
    for workers in (2, 8, 64, 512):
        where = {2: "table 2", 8: "table 3", 512: "section 5"}
        count = Given("workers", workers, where.get(workers, ""))
        rows += [
            Row(
                f"Reduction of pulled gradients, {workers} workers",
                "section 3.1",
                None,
                lambda workers, bits: bits / 32 * ideal_pull_ratio(int(workers)),
                (count, FLOAT),
            ),
            Row(
                f"Levels of the average of {workers} workers with a shared scaler",
                "section 3.1, eq. 4",
                None,
                lambda workers: 2 * workers + 1,
                (count,),
            ),
        ]
    rows.append(
        Row(
            "Ranks from which codes gathered by all stop paying against float32",
            "section 3.1",
            None,
            lambda: stops_paying_at("ternary/all-gather") or 0,
            (assumed("2 bits for three levels, a ring all-reduce"),),
        )
    )
    return rows


def _noise() -> list[Row]:
    parts = {
        "Clipping shortens by, %": (lambda noise: 100 * noise.length_loss, "section 3.3"),
        "Clipping turns by, degrees": (lambda noise: noise.turned_degrees, "section 3.3"),
        "Zeros among codes, closed form, %": (lambda noise: 100 * noise.zero_share, "figure 4(c)"),
        "Variance that ternarizing adds, in σ²": (lambda noise: noise.added_variance, "section 3.3"),
    }

    def part(name: str, clip: float) -> float:
        noise: GaussianNoise = gaussian_noise(clip)
        return parts[name][0](noise)

    rows = [
        Row(f"{name}, c = {clip:g}", where, None, lambda c, name=name: part(name, c), (_clip(clip), GAUSSIAN))
        for name, (_, where) in parts.items()
        for clip in (2.0, 2.5, 3.0)
    ]
    at_noise_scale = StatisticalEfficiency(CriticalBatch(minimum_epochs=1.0, critical=1.0))
    return [
        *rows,
        Row(
            "Zeros among codes, a million draws, %",
            "figure 4(c)",
            None,
            lambda clip: 100 * sampled_zero_share(clip),
            (CLIP, GAUSSIAN),
            "our text lacks the share that was measured in AlexNet's fc6; heavier tails give more zeros",
        ),
        Row(
            "Steps with ternary gradients over exact ones at the noise scale",
            "section 3.2",
            None,
            lambda: (at_noise_scale.epochs(1, "ternary") or 0.0) / (at_noise_scale.epochs(1) or 1.0),
            (assumed("steps grow with the variance as McCandlish et al. have it"), GAUSSIAN),
            "an upper bound; tables 1 to 3 train for the same epochs",
        ),
    ]


def _clip(clip: float) -> Given:
    return CLIP if clip == CLIP.value else assumed("clip c, in σ", clip)


def _accuracies() -> list[Row]:
    rows = []
    for batch, _, exact, ternary, text in TABLE_1:
        inputs = stated("ternary, %", ternary, "table 1"), stated("float, %", exact, "table 1")
        rows.append(Row(f"CifarNet, batch {batch}: change of accuracy, %", "table 1", text, _difference, inputs))
    for table, network, entries in (("table 2", "AlexNet", TABLE_2), ("table 3", "GoogLeNet", TABLE_3)):
        for batch, _, exact, ternary in entries:
            inputs = stated("ternary, %", ternary, table), stated("float, %", exact, table)
            rows.append(Row(f"{network}, batch {batch}: change of accuracy, %", table, None, _difference, inputs))
    unclipped = stated("no clipping, %", NO_CLIP, "table 2"), stated("ternary, %", TABLE_2[0][3], "table 2")
    rows.append(Row("AlexNet, batch 256: change without clipping, %", "table 2", None, _difference, unclipped))
    losses = [stated("an accuracy, %", value, "table 3") for _, _, *pair in TABLE_3 for value in pair]
    rows.append(
        Row(
            "GoogLeNet: mean loss of accuracy, %",
            "table 3",
            None,
            lambda *pairs: sum(pairs[0::2]) / 3 - sum(pairs[1::2]) / 3,
            tuple(losses),
            "the abstract says less than a number that our text lacks",
        )
    )
    # All trainings of a table see the same images, the text says: these ratios should be 1.
    for table, network, entries in (
        ("table 1", "CifarNet", TABLE_1),
        ("table 2", "AlexNet", TABLE_2),
        ("table 3", "GoogLeNet", TABLE_3),
    ):
        base = entries[0]
        for entry in entries[1:]:
            inputs = tuple(
                stated(name, value, table)
                for name, value in (
                    ("thousands of iterations", entry[1]),
                    ("batch", entry[0]),
                    ("thousands of iterations before", base[1]),
                    ("batch before", base[0]),
                )
            )
            odd = network == "GoogLeNet" and entry[0] == 512
            rows.append(
                Row(
                    f"{network}: images at batch {entry[0]} over those at {base[0]}",
                    table,
                    None,
                    lambda count, batch, other, size: count * batch / (other * size),
                    inputs,
                    "twice the images, which contradicts 'the same epochs'" if odd else "",
                )
            )
    return rows


def _last_layers() -> list[Row]:
    last = {"AlexNet": (4096, 1000, NETWORKS["AlexNet"], "6.7"), "ResNet-152": (2048, 1000, 60_192_808, "3.99")}
    return [
        Row(
            f"Last layer of {network}, % of its parameters",
            "section 4.2",
            text,
            lambda width, classes, count: 100 * (width + 1) * classes / count,
            (
                assumed("inputs of the layer", width),
                assumed("classes", classes),
                assumed(f"parameters of {network}{', with groups' if network == 'AlexNet' else ''}", count),
                assumed("a bias for each class"),
            ),
            "" if network == "AlexNet" else "the cause is unknown; 3.99 % is the share in about 51 M parameters",
        )
        for network, (width, classes, count, text) in last.items()
    ]


def _epochs_factors() -> list[Row]:
    """The planner's factor of epochs: 1 where a table trains both for the same iterations; elsewhere the noise's."""
    rows = []
    tables = (("table 1", "CifarNet", TABLE_1), ("table 2", "AlexNet", TABLE_2), ("table 3", "GoogLeNet", TABLE_3))
    for table, network, entries in tables:
        thousands = stated("thousands of iterations, float", entries[0][1], table)
        same = stated("thousands of iterations, ternary", entries[0][1], table)
        rows.append(
            Row(
                f"{network}: the planner's epochs with ternary gradients over exact ones",
                table,
                None,
                _planned_factor,
                (thousands, same),
                "the factor is given, so the planner returns it; without a factor it takes the bound from the noise",
            )
        )
    return rows


def _planned_factor(thousands: float, ternary_thousands: float) -> float:
    measured = {"ternary": ternary_thousands / thousands}
    efficiency = StatisticalEfficiency(CriticalBatch(minimum_epochs=1.0, critical=1.0), measured)
    return (efficiency.epochs(1, "ternary") or 0.0) / (efficiency.epochs(1) or 1.0)


def _performance() -> list[Row]:
    """Figure 5's networks by eq. 27 to 30."""
    rows = []
    for where, cluster in CLUSTERS.items():
        for network, count in NETWORKS.items():
            for scaling, equations in (("strong", "eq. 27, 28"), ("weak", "eq. 29, 30")):
                rows += [
                    Row(
                        f"{network}, ternary over float, {gpus} GPUs, {scaling} scaling, {where}",
                        f"appendix B, {equations}",
                        "2" if (network, scaling, where, gpus) == DOUBLED else None,
                        lambda count, step_s, gpus=gpus, cluster=cluster, scaling=scaling: ternary_speedups(
                            cluster, GpuWorkload(step_s, BATCH, int(4 * count)), (gpus,), scaling
                        )[gpus],
                        (
                            assumed("parameters of the architecture", count),
                            assumed("T_ps in s", STEP_S),
                            assumed(RATES[where]),
                            stated("4 GPUs of a machine", where="appendix B"),
                            RECALLED,
                            *((WEAK,) if (network, scaling, where, gpus) == DOUBLED else ()),
                        ),
                        _CHOSEN if (network, scaling, where, gpus) == DOUBLED else "",
                    )
                    for gpus in (8, 64, 512)
                ]
    return rows


def figure_5(folder: Path) -> None:
    """Draw samples per second over GPUs for the three networks, by eq. 27 to 30."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplots(2, len(CLUSTERS))
    counts = [1 << power for power in range(10)]
    for (scaling, row), (where, column) in product(
        zip(("strong", "weak"), panels, strict=True), zip(CLUSTERS, range(len(CLUSTERS)), strict=True)
    ):
        axes = row[column]
        for network, parameters in NETWORKS.items():
            work, color = GpuWorkload(STEP_S, BATCH, 4 * parameters), None
            for ternary, style in ((False, "--"), (True, "-")):
                rates = [samples_per_s(CLUSTERS[where], work, count, scaling, ternary) for count in counts]
                name = f"{network}, {'ternary' if ternary else 'float'}"
                color = axes.plot(counts, rates, style, color=color, label=name)[0].get_color()
        axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="samples/s", title=f"{scaling} scaling, {where}")
    panels[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(folder / "figure_5.png", dpi=120)


PAGE = Page(
    "TernGrad: ternary gradients",
    (*_codes(), *_noise(), *_accuracies(), *_epochs_factors(), *_last_layers(), *_performance()),
    (
        Undetermined("Tables 1 to 3: accuracies", "training on CIFAR-10 and ImageNet needs GPUs and the data"),
        Undetermined(
            "Figure 5",
            "T_ps and bandwidths of the clusters are not in the text; eq. 27-30 are computed for other clusters",
        ),
        Undetermined(
            "Section 3.3's length and direction", "our text lacks the numbers; ours are those of a Gaussian gradient"
        ),
    ),
)


if __name__ == "__main__":
    report(PAGE, figure_5)
