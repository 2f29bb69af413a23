"""Numbers of TernGrad (Wen et al. 2017) that its text determines.

Run it: ``python examples/paper_004_terngrad.py``; with ``--json`` it prints a list of rows.
"""

from _paper_table import Number, Unreproducible, report
from paper_models.ternary_noise import gaussian_noise, sampled_zero_share
from paper_models.ternary_throughput import Cluster, GpuWorkload, ternary_speedups
from paper_models.ternary_transports import ideal_pull_ratio, ideal_push_ratio, stops_paying_at

from dlplacer.planning.hybrid import CriticalBatch, StatisticalEfficiency

CLIP = 2.5
ALEXNET_GROUPED, ALEXNET_LAST = 60_965_224, 4096 * 1000 + 1000
# An example, not the paper's: a step of 0.3 s on one GPU, 4 GPUs to a machine on a PCIe switch, 1 Gbit/s between them.
EXAMPLE = Cluster(4, 10e9, 6e9, 0.125e9, 50e-6)
STEP_S, BATCH = 0.3, 128


def main() -> None:
    """Print the table."""
    noise = gaussian_noise(CLIP)
    at_noise_scale = StatisticalEfficiency(CriticalBatch(minimum_epochs=1.0, critical=1.0))
    steps_ratio = (at_noise_scale.epochs(1, "ternary") or 0.0) / (at_noise_scale.epochs(1) or 1.0)
    numbers = [
        Number("Section 3: reduction of pushed gradients, 32 / log2 3", None, ideal_push_ratio(), (3, 32)),
        Number("Section 3: reduction with 2 bits for a code", None, 32 / 2, assumed="2 bits for three levels"),
        *(
            Number(
                f"Section 3: reduction of pulled gradients, {workers} workers",
                None,
                ideal_pull_ratio(workers),
                (3, 32, workers),
            )
            for workers in (2, 8, 64, 512)
        ),
        Number("Section 3.3: clipping at 2.5 σ shortens by, percent", None, 100 * noise.length_loss, assumed=_GAUSSIAN),
        Number("Section 3.3: clipping at 2.5 σ turns by, degrees", None, noise.turned_degrees, assumed=_GAUSSIAN),
        Number("Zeros among codes, percent, closed form", None, 100 * noise.zero_share, assumed=_GAUSSIAN, note=_ZEROS),
        Number("Zeros among codes, percent, a million draws", None, 100 * sampled_zero_share(CLIP), assumed=_GAUSSIAN),
        Number("Variance that ternarizing adds, in σ²", None, noise.added_variance, assumed=_GAUSSIAN),
        Number("Steps with ternary gradients over exact ones at the noise scale", None, steps_ratio, assumed=_GAUSSIAN),
        Number("Table 1: loss of accuracy at a batch of 128, percent", 0.92, 86.56 - 85.64, (86.56, 85.64)),
        Number("Table 1: loss of accuracy at a batch of 2048, percent", 0.39, 83.19 - 82.80, (83.19, 82.80)),
        # The text says that the trainings of a table see the same images: these ratios should be 1.
        Number(
            "Table 1: images at a batch of 2048 over those at 128",
            None,
            18.75e3 * 2048 / (300e3 * 128),
            (18.75, 2048, 300, 128),
        ),
        *(
            Number(
                f"Table 2: images at a batch of {batch} over those at 256",
                None,
                thousands * batch / (370 * 256),
                (thousands, batch, 370, 256),
            )
            for thousands, batch in ((185, 512), (92.5, 1024))
        ),
        Number(
            "Last layer of AlexNet, percent of its parameters",
            6.7,
            100 * ALEXNET_LAST / ALEXNET_GROUPED,
            assumed="parameter counts of the architecture",
        ),
        Number(
            "Codes gathered by all stop paying against float32, ranks",
            None,
            stops_paying_at("ternary/all-gather") or 0,
            assumed="2 bits for three levels, a ring all-reduce",
        ),
        *_performance(),
    ]
    report("TernGrad: ternary gradients", numbers, _MISSING)


def _performance() -> list[Number]:
    work = GpuWorkload(STEP_S, BATCH, 4 * ALEXNET_GROUPED)
    speedups = ternary_speedups(EXAMPLE, work, (8, 64, 512))
    return [
        Number(
            f"Appendix B: gain of AlexNet on {gpus} GPUs of an example cluster",
            None,
            gain,
            assumed="T_ps and rates",
        )
        for gpus, gain in speedups.items()
    ]


_GAUSSIAN = "a Gaussian gradient, clipped at 2.5 σ"
_ZEROS = "the text lost the share that was measured in AlexNet's fc6; heavier tails give more zeros"
_MISSING = (
    Unreproducible("Tables 1 to 3: accuracies", "training on CIFAR-10 and ImageNet; needs GPUs and the data"),
    Unreproducible("Figure 5", "T_ps and bandwidths of its clusters are not in the text"),
    Unreproducible("ResNet-152's last layer, 3.99 %", "60.19 M parameters give 3.40 %"),
    Unreproducible("Table 3, 512/300K", "twice the images of the other rows, against 'the same epochs'"),
)


if __name__ == "__main__":
    main()
