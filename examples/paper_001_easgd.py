"""Numbers of You, Buluç and Demmel 2017 (elastic averaging on GPUs and KNL) that its text determines.

Run it: ``python examples/paper_001_easgd.py``; with ``--json`` it prints a list of rows.
"""

from _paper_table import Number, Unreproducible, report
from paper_models.elastic_cost import most_parts
from paper_models.training_breakdown import Breakdown, weak_scaling_efficiency

PARTS = ("gpu-gpu para", "cpu-gpu data", "cpu-gpu para", "for/backward", "gpu update", "cpu update")
# Table 3: seconds, iterations, mini-batches of an iteration (synchronous: one for each of 4 GPUs), shares in percent.
TABLE_3 = {
    "Original EASGD*": (69, 5000, 1, (0, 0.5, 51, 44, 0.5, 4)),
    "Original EASGD": (41, 5000, 1, (0, 1, 86, 3, 1, 9)),
    "Sync EASGD1": (11, 1000, 4, (1, 3, 21, 55, 4, 16)),
    "Sync EASGD2": (8.2, 1000, 4, (16, 4, 0, 74, 6, 0)),
    "Sync EASGD3": (7.7, 1000, 4, (10, 4, 0, 79, 7, 0)),
}
PRINTED_SHARES = {"Original EASGD*": 52, "Original EASGD": 87, "Sync EASGD1": 25, "Sync EASGD2": 20, "Sync EASGD3": 14}
CORES = (68, 136, 272, 544, 1088, 2176, 4352)
# Table 4: seconds on CORES, printed efficiencies in percent.
TABLE_4 = {
    "GoogleNet": ((1533, 1590, 1608, 1641, 1630, 1662, 1674), (100, 96.4, 95.3, 93.4, 94.0, 92.3, 91.6)),
    "VGG": ((1318, 1440, 1482, 1524, 1634, 1679, 1642), (100, 91.5, 89.0, 86.5, 80.7, 78.5, 80.2)),
}
PART_S = {1: 1605, 4: 1025, 8: 823, 16: 490}
MB = 10**6


def main() -> None:
    """Print the table."""
    rows = {
        name: Breakdown(time_s, iterations, batches, dict(zip(PARTS, (share / 100 for share in shares), strict=True)))
        for name, (time_s, iterations, batches, shares) in TABLE_3.items()
    }
    numbers = [*_speedups(rows), *_shares(rows), *_weak_scaling(), *_chip(), *_sizes()]
    report("You, Buluç and Demmel 2017: elastic averaging", numbers, _MISSING)


def _speedups(rows: dict[str, Breakdown]) -> list[Number]:
    original, first, second, third = (rows[name] for name in list(TABLE_3)[1:])
    return [
        Number("Table 3: Sync EASGD1 over Original", None, original.time_s / first.time_s, (41, 11)),
        Number("Table 3: Sync EASGD2 over Sync EASGD1", 1.3, first.time_s / second.time_s, (11, 8.2)),
        Number("Table 3: Sync EASGD3 over Sync EASGD2", 1.1, second.time_s / third.time_s, (8.2, 7.7)),
        Number("Table 3: Sync EASGD3 over Original", 5.3, original.time_s / third.time_s, (41, 7.7), note=_FIVE),
        Number("Table 3: of that, fewer mini-batches", None, original.batches / third.batches, (5000, 1000, 4)),
        Number("Table 3: of that, less time for each", None, original.batch_s / third.batch_s, (41, 7.7, 5000, 1000)),
    ]


def _shares(rows: dict[str, Breakdown]) -> list[Number]:
    shares = [
        Number(
            f"Table 3: communication in percent, {name}",
            PRINTED_SHARES[name],
            100 * row.communication_share,
            TABLE_3[name][3][:3],
        )
        for name, row in rows.items()
    ]
    forward_s = {name: row.seconds("for/backward") for name, row in rows.items()}
    return [
        *shares,
        Number("Table 3: seconds of forward and backward, Original*", 30, forward_s["Original EASGD*"], (69, 44)),
        Number("Table 3: seconds of forward and backward, Sync EASGD3", 6, forward_s["Sync EASGD3"], (7.7, 79)),
    ]


def _weak_scaling() -> list[Number]:
    return [
        Number(
            f"Table 4: weak-scaling efficiency in percent, {model}, {cores} cores",
            printed,
            100 * efficiency,
            (times_s[0], time_s),
        )
        for model, (times_s, percents) in TABLE_4.items()
        for cores, time_s, printed, efficiency in zip(
            CORES, times_s, percents, weak_scaling_efficiency(times_s), strict=True
        )
        if cores > CORES[0]
    ]


def _chip() -> list[Number]:
    fast_bytes = 16 * 1024 * MB
    return [
        Number(
            "Section 6.2: parts of a KNL, AlexNet and Cifar",
            16,
            most_parts(249 * MB, 687 * MB, fast_bytes),
            (249, 687),
            "parts are a power of two",
            _16,
        ),
        Number("Section 6.2: speedup of 16 parts over 1", 3.3, PART_S[1] / PART_S[16], (1605, 490)),
        Number("Section 6.2: speedup of 8 parts over 1", None, PART_S[1] / PART_S[8], (1605, 823)),
    ]


def _sizes() -> list[Number]:
    return [
        Number("64 Cifar samples, KiB", 768, 64 * 32 * 32 * 3 * 4 / 1024, (64, 32, 3, 4)),
        Number("VGG-19's weights, MB", 575, 143_667_240 * 4 / MB, assumed="parameter count of the architecture"),
        Number("AlexNet's weights, MB", 249, 62_378_344 * 4 / MB, assumed="parameter count of the architecture"),
        Number(
            "Table 2: bytes at half the rate, FDR InfiniBand",
            None,
            0.7e-6 / 0.2e-9,
            assumed="α and β of the original paper, β per byte",
        ),
    ]


_FIVE = "most of it is four GPUs working at once on fewer mini-batches, not less communication"
_16 = "17 copies fit as well (15,912 MB of 16,384); 16 is the largest power of two"
_MISSING = (
    Unreproducible("Figures 6, 8 and 13", "accuracies over time were measured; their values are not in the text"),
    Unreproducible("Cifar's copy of 687 MB", "60,000 float32 images are 703 MiB"),
    Unreproducible("Abstract: 91.5 % on 4253 cores", "table 4 has 91.6 % on 4352 cores"),
    Unreproducible("Sync EASGD2 to 3", "hiding all of the exchange would leave 6.9 s; 7.7 s were measured"),
)


if __name__ == "__main__":
    main()
