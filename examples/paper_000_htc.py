"""Numbers of Zou et al. 2017 (distributed training of large-scale deep architectures) that its text determines.

Run it: ``python examples/paper_000_htc.py``; ``--json`` prints a list of rows, ``--output demo`` draws figure 2.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from _paper_table import Page, Row, Undetermined, assumed, fitted, report, stated
from paper_models.conv_algorithms import Step, best_step
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

from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.planning.hybrid.scaling import SerialOverhead, fewest_servers, most_overhead_ratio
from dlplacer.planning.hybrid.step_times import fastest_work

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
FILTERS = stated("filters F, D_i+1", where="table 2")
LAYERS = assumed(
    "AlexNet's strides, paddings, poolings of 3 at stride 2, classifier of 4096, 4096, 1000; eq. 1 rounded down"
)
CORRECTED = assumed("eq. 3, 4 corrected: depth of the input, outputs of the whole mini-batch")
GIGA = assumed("GB = 10^9")
FORMULA = fitted("FFT as half of the complex plane at input size, filters included; GEMM as input and output")
COSTS = assumed(
    "three passes; GEMM in place; FFT as half of the complex plane at input size, 2.5 n log2 n operations for a "
    "transform and 8 for a product; Winograd of 3 x 3 at stride 1: 16 products for 4 outputs, tiles stored"
)
GPU_BYTES = stated("memory of a K80's GPU, GB", 12, "table 1")
IMAGE = stated("image size", 224, "table 2")
PEAK = assumed("a K80's GPU without boost, TFLOP/s", 2.8)
SHARES = assumed("shares of the peak: GEMM 60 %, FFT 30 %, Winograd 45 %")
PAIR, ALL = ("GEMM", "FFT"), ("GEMM", "FFT", "Winograd")


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


@cache
def step(batch: int, size: float, gigabytes: float, tflops: float, algorithms: Sequence[str] = PAIR) -> Step | None:
    """Eq. 6 for AlexNet's convolutions."""
    return best_step(alex_net(size), batch, int(gigabytes * 1e9), tflops * 1e12, algorithms)


def images_per_s(batch: int, *machine: float, algorithms: Sequence[str] = PAIR) -> float:
    """Throughput of AlexNet's convolutions; 0 where the mini-batch does not fit."""
    found = step(batch, *machine, algorithms)
    return 0.0 if found is None else batch / found.time_s


def threshold(*machine: float, algorithms: Sequence[str] = PAIR) -> float:
    """The largest mini-batch for which every layer has the algorithm that it has with memory to spare."""
    size, _, tflops = machine
    low, high = 1, int(largest_batch(*machine[:2])) + 1
    while high - low > 1:
        middle = (low + high) // 2
        here, roomy = step(middle, *machine, algorithms), step(middle, size, 1e6, tflops, algorithms)
        low, high = (middle, high) if here == roomy else (low, middle)
    return low


def _algorithms() -> list[Row]:
    """Figure 2 in shape: the mini-batch against the convolutions' algorithms (eq. 6)."""
    machine, where = (IMAGE, GPU_BYTES, PEAK), "section 3.1, eq. 6, figure 2"
    others = FILTERS, LAYERS, CORRECTED, GIGA, COSTS, SHARES
    rows = [
        Row(
            f"Images/s of AlexNet's convolutions at a mini-batch of {batch}, GEMM or FFT",
            where,
            None,
            lambda *machine, batch=batch: images_per_s(batch, *machine),
            (*machine, *others),
        )
        for batch in (32, 128, 512, 1024, 1536, 2048)
    ]
    for algorithms in (PAIR, ALL):
        names = " or ".join(algorithms)
        rows += [
            Row(
                f"Largest mini-batch of the fastest algorithms, {names}",
                where,
                None,
                lambda *machine, algorithms=algorithms: threshold(*machine, algorithms=algorithms),
                (*machine, *others),
                "larger mini-batches lower the throughput, as the text says about figure 2",
            ),
            Row(
                f"Throughput lost at the largest mini-batch that fits, %, {names}",
                where,
                None,
                lambda *machine, algorithms=algorithms: _lost(machine, algorithms),
                (*machine, *others),
            ),
        ]
    return rows


def _lost(machine: tuple[float, ...], algorithms: Sequence[str]) -> float:
    at = [
        images_per_s(int(batch), *machine, algorithms=algorithms)
        for batch in (threshold(*machine, algorithms=algorithms), largest_batch(*machine[:2]))
    ]
    return 100 * (1 - at[1] / at[0])


def figure_2(folder: Path) -> None:
    """Draw throughput over the mini-batch, by the algorithms that eq. 6 may choose from."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.add_subplot()
    machine = IMAGE.value, GPU_BYTES.value, PEAK.value
    batches = range(16, int(largest_batch(*machine[:2])) + 1, 16)
    for algorithms in (("GEMM",), PAIR, ALL):
        rates = [images_per_s(batch, *machine, algorithms=algorithms) for batch in batches]
        axes.plot(batches, rates, label=" or ".join(algorithms))
    axes.set(
        xlabel="mini-batch", ylabel="images/s of AlexNet's convolutions", title="figure 2 on a K80's GPU, rates assumed"
    )
    axes.legend(frameon=False)
    figure.savefig(folder / "figure_2.png", dpi=120)


def overhead_ratio(compute_s: float, update_s: float, megabytes: float, slot: float) -> float:
    """R_O of a mini-batch of 32 images: update, copies of images and parameters to a GPU, and of gradients back."""
    copied = 32 * 3 * 224**2 * 4 + 2 * megabytes * 1e6
    return (update_s + copied / slot) / compute_s


def planned() -> tuple[Row, ...]:
    """R_O of shipped models from their roofline on a K80: what is not computation, one GPU, nothing hidden."""
    import dlplacer as dp
    from dlplacer.models import alexnet, googlenet, resnet50

    box = dp.load_topology("p2-8xlarge")
    slot = box.links[0].bytes_per_s
    rows = []
    for name, make in {"AlexNet": alexnet, "GoogLeNet": googlenet, "ResNet-50": resnet50}.items():
        work = fastest_work(with_times(dp.capture(make(batch_size=32)), box), box)
        compute_s, weights = work.step_s - work.update_s, work.gradient_bytes
        inputs = (
            assumed("seconds of forward and backward at a mini-batch of 32, by the roofline", compute_s),
            assumed("seconds of the update, by the roofline", work.update_s),
            assumed("MB of parameters", weights / 1e6),
            assumed("bytes/s of a PCIe slot", slot),
            assumed("32 images of 224 x 224 x 3 in float32; a K80's GPU without boost"),
        )
        where, note = "section 3.2, figure 4", "steps 1, 4 and 6 of figure 1, one after another"
        rows.append(Row(f"R_O of {name} on a P2", where, None, overhead_ratio, inputs, note))
        for gpus in (4, 8):
            rows.append(
                Row(
                    f"Speedup of {name} on {gpus} GPUs of a P2 from that R_O",
                    where,
                    None,
                    lambda *given, gpus=gpus: gpus * SerialOverhead(overhead_ratio(*given)).efficiency(gpus),
                    inputs,
                )
            )
    return tuple(rows)


def _lemmas() -> list[Row]:
    where = "section 3.2, lemma 3.1"
    rows = [
        Row("Speedup if half of a task is not parallel", "section 1", "2", lambda share: 1 / share, (HALF,)),
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
                "the text prints no formula; ours was chosen to fit the five ratios",
            )
        )
    rows += [
        Row("AlexNet's parameters, ungrouped", "table 2", None, parameters, (IMAGE, FILTERS, LAYERS)),
        Row(
            "AlexNet's parameters pushed, MB",
            "section 3.3",
            "180",
            lambda size: parameters(size) * 4 / 1e6,
            (IMAGE, FILTERS, LAYERS),
            "not reproduced: the text says 'around 180 MB' without a definition; AlexNet has 244 MB with groups, 249.5 "
            "without",
        ),
        Row(
            "Largest mini-batch of AlexNet on a K80's GPU",
            "section 3.1",
            None,
            largest_batch,
            (IMAGE, GPU_BYTES, FILTERS, LAYERS, CORRECTED, GIGA),
        ),
    ]
    for batch in (32, 128, 512):
        rows += [
            Row(
                f"Feature maps of AlexNet at a mini-batch of {batch}, GB (eq. 2)",
                "section 3.1",
                None,
                lambda size, batch=batch: feature_map_bytes(alex_net(size), batch) / 1e9,
                (IMAGE, FILTERS, LAYERS, GIGA),
            ),
            Row(
                f"M_bound at a mini-batch of {batch} on a K80's GPU, GB",
                "section 3.1",
                None,
                lambda size, memory, batch=batch: bound_gb(size, batch, memory),
                (IMAGE, GPU_BYTES, FILTERS, LAYERS, CORRECTED, GIGA),
            ),
        ]
    return rows


PAGE = Page(
    "Zou et al. 2017: mini-batch, number of GPUs, number of servers",
    (*_lemmas(), *_memory(), *_algorithms()),
    (
        Undetermined(
            "Figures 2 and 3", "the text's throughput and learning curves were measured; our figure 2 is computed"
        ),
        Undetermined("Figure 4", "the overhead ratio of each network is not in the text; ours come from a roofline"),
        Undetermined("Lemma 3.2's example", "the text gives parameters and a network, but no step time"),
        Undetermined(
            "Equation 6's times", "the text prints no time of an algorithm; ours assume shares of a peak rate"
        ),
    ),
)


if __name__ == "__main__":
    report(PAGE, figure_2)
