"""Numbers of Zou et al. 2017 (distributed training of large-scale deep architectures) that its text determines.

Run it: ``python examples/paper_000_htc.py``; with ``--json`` it prints a list of rows.
"""

from _paper_table import Page, Row, Undetermined, assumed, report, stated
from paper_models.conv_net_memory import (
    ConvNet,
    FeatureLayer,
    classifier_bytes,
    feature_map_bytes,
    feature_parameter_bytes,
    fft_bytes,
    gemm_bytes,
    memory_bound_bytes,
)

from dlplacer.planning.hybrid.lemmas import SerialOverhead, fewest_servers, most_overhead_ratio

# Table 2: (B_i, B_i+1, D_i, D_i+1, F) of AlexNet's convolutions at a mini-batch of 128, and the printed FFT/GEMM ratio.
TABLE_2 = (
    (224, 55, 3, 96, 11, "11.6"),
    (27, 27, 96, 256, 5, "1.6"),
    (13, 13, 256, 384, 3, "2.3"),
    (13, 13, 384, 384, 3, "2.7"),
    (13, 13, 384, 256, 3, "2.3"),
)
COPIES = 3  # eq. 3 and 4 count parameters three times

HALF = stated("share that is not parallel", 0.5, "section 1")
EFFICIENCY, FOUR = stated("efficiency α", 0.8, "section 3.2"), stated("GPUs G", 4, "section 3.2")
OVERHEAD, WANTED = stated("R_O", 0.10, "section 3.2"), stated("speedup", 3, "section 3.2")
BATCH = stated("mini-batch", 128, "table 2")
LAYERS = assumed("AlexNet's strides, paddings and classifier of 4096, 4096, 1000")
FORMULA = assumed("FFT as half of the complex plane at input size, GEMM as input and output")
GPU_BYTES = stated("memory of a K80's GPU, GB", 12, "table 1")


def alex_net(size: float) -> ConvNet:
    """AlexNet without groups for images of this size."""
    side = int(size)
    convolutions = [TABLE_2[row][3:5] for row in range(5)]
    (k1, f1), (k2, f2), (k3, f3), (k4, f4), (k5, f5) = convolutions
    pool = FeatureLayer(3, 2)
    first = (FeatureLayer(f1, 4, 2, k1), pool, FeatureLayer(f2, 1, 2, k2), pool)
    rest = (FeatureLayer(f3, 1, 1, k3), FeatureLayer(f4, 1, 1, k4), FeatureLayer(f5, 1, 1, k5), pool)
    return ConvNet((side, side, 3), (*first, *rest), (4096, 4096, 1000))


def parameters(size: float) -> float:
    """Parameters of AlexNet."""
    net = alex_net(size)
    return (feature_parameter_bytes(net) + classifier_bytes(net, batch=0)) / COPIES / 4


def bound_gb(size: float, batch: float, gigabytes: float) -> float:
    """M_bound: what is left for the algorithms of the convolutions (section 3.1)."""
    return memory_bound_bytes(alex_net(size), int(batch), int(gigabytes * 1e9)) / 1e9


def largest_batch(size: float, gigabytes: float) -> float:
    """The largest mini-batch whose M_bound is not negative."""
    batch = 1
    while bound_gb(size, batch + 1, gigabytes) >= 0:
        batch += 1
    return batch


def _lemmas() -> list[Row]:
    where = "section 3.2, lemma 3.1"
    rows = [
        Row("Speedup if half of a task is not parallel", "section 1", None, lambda share: 1 / share, (HALF,)),
        Row("Most overhead for 80 % efficiency on 4 GPUs", where, "0.09", most_overhead_ratio, (EFFICIENCY, FOUR)),
        Row(
            "GPUs for a speedup of 3 at R_O = 10 %",
            where,
            "4",
            lambda overhead, speedup: SerialOverhead(overhead).workers_for(speedup),
            (OVERHEAD, WANTED),
        ),
        Row(
            "Ceiling of the speedup at R_O = 10 %",
            where,
            None,
            lambda r: SerialOverhead(r).speedup_ceiling,
            (OVERHEAD,),
        ),
    ]
    for gpus in (2, 3, 4, 8):
        rows.append(
            Row(
                f"Speedup on {gpus} GPUs at R_O = 10 %",
                where,
                None,
                lambda overhead, gpus=gpus: gpus * SerialOverhead(overhead).efficiency(gpus),
                (OVERHEAD,),
            )
        )
    push = stated("parameters pushed, MB", 180, "section 3.3")
    network = stated("network, Gbit/s", 10, "table 1")
    for workers in (4, 8):
        rows.append(
            Row(
                f"Servers that hide AlexNet's exchange behind 1 s, {workers} workers (lemma 3.2)",
                "section 3.3, lemma 3.2",
                None,
                lambda size, rate, workers=workers: fewest_servers(size * 1e6, workers, rate * 1e9 / 8, 1.0),
                (push, network, assumed("a step of 1 s")),
            )
        )
    rows.append(
        Row(
            "Seconds in which 1 Gbit/s Ethernet carries AlexNet's push",
            "section 3.3",
            None,
            lambda size, gigabits: size * 1e6 * 8 / (gigabits * 1e9),
            (push, stated("Ethernet, Gbit/s", 1, "section 3.3")),
        )
    )
    return rows


def _memory() -> list[Row]:
    rows = []
    for number, (size, out_size, depth, out_depth, _, printed) in enumerate(TABLE_2, start=1):
        inputs = (
            BATCH,
            stated("B_i", size, "table 2"),
            stated("B_i+1", out_size, "table 2"),
            stated("D_i", depth, "table 2"),
            stated("D_i+1", out_depth, "table 2"),
            FORMULA,
        )
        rows.append(
            Row(
                f"Memory of FFT over GEMM, convolution {number}",
                "table 2",
                printed,
                lambda batch, before, after, depth, out: (
                    fft_bytes(int(batch), int(before), (int(depth), int(out)))
                    / gemm_bytes(int(batch), (int(before), int(after)), (int(depth), int(out)))
                ),
                inputs,
                "" if number in (1, 2, 4) else "2.37: within 3 % of a ratio whose formula the text does not print",
            )
        )
    image = stated("image size", 224, "table 2")
    rows += [
        Row("AlexNet's parameters, ungrouped", "table 2", None, parameters, (image, LAYERS)),
        Row(
            "AlexNet's parameters pushed, MB",
            "section 3.3",
            "180",
            lambda size: parameters(size) * 4 / 1e6,
            (image, LAYERS),
            "244 MB with groups, 249.5 without: the text's 180 has another AlexNet",
        ),
        Row(
            "Largest mini-batch of AlexNet on a K80's GPU",
            "section 3.1",
            None,
            largest_batch,
            (image, GPU_BYTES, LAYERS),
        ),
    ]
    for batch in (32, 128, 512):
        rows += [
            Row(
                f"Feature maps of AlexNet at a mini-batch of {batch}, GB (eq. 2)",
                "section 3.1",
                None,
                lambda size, batch=batch: feature_map_bytes(alex_net(size), batch) / 1e9,
                (image, LAYERS),
            ),
            Row(
                f"M_bound at a mini-batch of {batch} on a K80's GPU, GB",
                "section 3.1",
                None,
                lambda size, memory, batch=batch: bound_gb(size, batch, memory),
                (image, GPU_BYTES, LAYERS),
            ),
        ]
    return rows


PAGE = Page(
    "Zou et al. 2017: mini-batch, number of GPUs, number of servers",
    (*_lemmas(), *_memory()),
    (
        Undetermined("Figures 2 and 3", "throughput and learning curves were measured; the text has no values"),
        Undetermined("Figure 4", "the overhead ratio of each network is not in the text"),
        Undetermined("Lemma 3.2's example", "it gives parameters and a network, and no time of a step"),
        Undetermined("Equation 6's times", "the text prints no time of a convolution algorithm"),
    ),
)


if __name__ == "__main__":
    report(PAGE)
