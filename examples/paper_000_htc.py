"""Numbers of Zou et al. 2017 (distributed training of large-scale deep architectures) that its text determines.

Run it: ``python examples/paper_000_htc.py``; with ``--json`` it prints a list of rows.
"""

from _paper_table import Number, Unreproducible, report
from paper_models.conv_net_memory import (
    ConvNet,
    FeatureLayer,
    classifier_bytes,
    feature_parameter_bytes,
    fft_bytes,
    gemm_bytes,
)

from dlplacer.planning.hybrid.lemmas import most_overhead_ratio
from dlplacer.planning.hybrid.scaling import SerialOverhead

# Table 2: (B_i, B_i+1, D_i, D_i+1, F) of AlexNet's convolutions at a mini-batch of 128, and the printed FFT/GEMM ratio.
TABLE_2 = (
    (224, 55, 3, 96, 11, 11.6),
    (27, 27, 96, 256, 5, 1.6),
    (13, 13, 256, 384, 3, 2.3),
    (13, 13, 384, 384, 3, 2.7),
    (13, 13, 384, 256, 3, 2.3),
)
ALEXNET = ConvNet(
    (224, 224, 3),
    (
        FeatureLayer(11, 4, 2, 96),
        FeatureLayer(3, 2),
        FeatureLayer(5, 1, 2, 256),
        FeatureLayer(3, 2),
        FeatureLayer(3, 1, 1, 384),
        FeatureLayer(3, 1, 1, 384),
        FeatureLayer(3, 1, 1, 256),
        FeatureLayer(3, 2),
    ),
    (4096, 4096, 1000),
)
COPIES = 3  # eq. 3 and 4 count parameters three times


def main() -> None:
    """Print the table."""
    overhead = SerialOverhead(0.10)
    numbers = [
        Number("Lemma 3.1: most overhead for 80 % efficiency on 4 GPUs", 0.09, most_overhead_ratio(0.8, 4), (0.8, 4)),
        Number("Lemma 3.1: GPUs for a speedup of 3 at R_O = 10 %", 4, overhead.workers_for(3), (0.10, 3)),
        Number("Lemma 3.1: speedup on 3 GPUs at R_O = 10 %", None, 3 * overhead.efficiency(3), (0.10,)),
        Number("Lemma 3.1: speedup on 4 GPUs at R_O = 10 %", None, 4 * overhead.efficiency(4), (0.10,)),
        Number("Lemma 3.1: ceiling of the speedup at R_O = 10 %", None, overhead.speedup_ceiling, (0.10,)),
    ]
    for row, (size, out_size, depth, out_depth, _, printed) in enumerate(TABLE_2, start=1):
        ratio = fft_bytes(128, size, (depth, out_depth)) / gemm_bytes(128, (size, out_size), (depth, out_depth))
        numbers.append(
            Number(
                f"Table 2: memory of FFT over GEMM, convolution {row}",
                printed,
                ratio,
                (128, size, out_size, depth, out_depth),
                "the formula of the memory",
            )
        )
    parameters = (feature_parameter_bytes(ALEXNET) + classifier_bytes(ALEXNET, batch=0)) / COPIES / 4
    numbers.append(
        Number("AlexNet's parameters, from table 2's dimensions", None, parameters, (224, 3, 96, 11), note=_ALEXNET)
    )
    report("Zou et al. 2017: mini-batch, number of GPUs, number of servers", numbers, _MISSING)


_ALEXNET = "62.4 M float32 parameters are 249.5 MB: the size that You et al. 2017 name for AlexNet"
_MISSING = (
    Unreproducible(
        "AlexNet's 180 MB pushed over 1 Gbit", "AlexNet has 244 MB of parameters with grouping, 249.5 without"
    ),
    Unreproducible("Figures 2 and 3", "throughput and learning curves were measured; their values are not in the text"),
    Unreproducible("Figure 4", "the overhead ratio of each network is not in the text"),
    Unreproducible("Lemma 3.2", "the text gives the formula and no numbers to put in"),
)


if __name__ == "__main__":
    main()
