"""Numbers of TernGrad (Wen et al. 2017) that its text determines.

Run it: ``python examples/paper_004_terngrad.py``; with ``--json`` it prints a list of rows.
"""

import math

from _paper_table import Given, Page, Row, Undetermined, assumed, report, stated
from paper_models.ternary_noise import GaussianNoise, gaussian_noise, sampled_zero_share
from paper_models.ternary_throughput import Cluster, GpuWorkload, ternary_speedups
from paper_models.ternary_transports import ideal_pull_ratio, stops_paying_at

from dlplacer.planning.hybrid import CriticalBatch, StatisticalEfficiency

# Table 1: mini-batch, thousands of iterations, accuracy in percent with float gradients and ternary ones, the loss.
TABLE_1 = ((128, 300, 86.56, 85.64, "-0.92"), (2048, 18.75, 83.19, 82.80, "-0.39"))
# Table 2 (AlexNet, top-1 in percent): mini-batch, thousands of iterations, float, ternary where the text has both.
TABLE_2 = ((256, 370, 57.33, 57.61), (512, 185, 57.32, 57.28), (1024, 92.5, None, None))
NO_CLIP = 54.63
# Table 3 (GoogLeNet, top-5 in percent): mini-batch, thousands of iterations, float, ternary.
TABLE_3 = ((128, 600, 88.30, 86.77), (256, 300, 87.82, 85.96), (512, 300, 89.00, 86.47))
NETWORKS = {"AlexNet": 60_965_224, "GoogLeNet": 6_998_552, "VggNet-A": 132_863_336}
"""Parameters of figure 5's networks, by their architectures."""

CLIP = assumed("clip c, in σ, lost in the text", 2.5)
GAUSSIAN = assumed("a Gaussian gradient")
LEVELS = stated("levels", 3, "abstract")
# Not the paper's: a step of 0.3 s on one GPU, 4 GPUs to a machine on a PCIe switch, Ethernet and InfiniBand.
STEP_S, BATCH = 0.3, 128
CLUSTERS = {
    "1 Gbit/s and PCIe": Cluster(4, 10e9, 6e9, 0.125e9, 50e-6),
    "100 Gbit/s and NVLink": Cluster(4, 10e9, 40e9, 12.5e9, 2e-6),
}


def _difference(after: float, before: float) -> float:
    return after - before


def _codes() -> list[Row]:
    rows = [
        Row(
            "Reduction of pushed gradients, 32 / log2 3",
            "section 3.1",
            None,
            lambda levels: 32 / math.log2(levels),
            (LEVELS,),
        ),
        Row(
            "Reduction with 2 bits for a code",
            "section 3.1",
            None,
            lambda bits: 32 / bits,
            (stated("bits", 2, "section 3.1"),),
        ),
    ]
    for workers in (2, 8, 64, 512):
        count = assumed("workers", workers)
        rows += [
            Row(
                f"Reduction of pulled gradients, {workers} workers",
                "section 3.1",
                None,
                lambda workers: ideal_pull_ratio(int(workers)),
                (count,),
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
            "the text lost the share that was measured in AlexNet's fc6; heavier tails give more zeros",
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
            if exact is not None and ternary is not None:
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
            "the abstract says less than a number that the text lost",
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
                    "twice the images, against 'the same epochs'" if odd else "",
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
                assumed("parameters of the architecture", count),
            ),
            "" if network == "AlexNet" else "60.19 M parameters give 3.40 %",
        )
        for network, (width, classes, count, text) in last.items()
    ]


def _performance() -> list[Row]:
    rows = []
    for where, cluster in CLUSTERS.items():
        for network, count in NETWORKS.items():
            for gpus in (8, 64, 512):
                rows.append(
                    Row(
                        f"Throughput of {network} with ternary gradients over float, {gpus} GPUs, {where}",
                        "appendix B, eq. 27, 28",
                        None,
                        lambda count, step_s, gpus=gpus, cluster=cluster: ternary_speedups(
                            cluster, GpuWorkload(step_s, BATCH, int(4 * count)), (gpus,)
                        )[gpus],
                        (
                            assumed("parameters of the architecture", count),
                            assumed("T_ps in s", STEP_S),
                            assumed(f"rates of a cluster with {where}"),
                        ),
                    )
                )
    return rows


PAGE = Page(
    "TernGrad: ternary gradients",
    (*_codes(), *_noise(), *_accuracies(), *_last_layers(), *_performance()),
    (
        Undetermined("Tables 1 to 3: accuracies", "training on CIFAR-10 and ImageNet; needs GPUs and the data"),
        Undetermined("Figure 5", "T_ps and bandwidths of its clusters are not in the text; eq. 27-30 run on others"),
        Undetermined("Section 3.3's length and direction", "the text lost the numbers; ours are of a Gaussian"),
    ),
)


if __name__ == "__main__":
    report(PAGE)
