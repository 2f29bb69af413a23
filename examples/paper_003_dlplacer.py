"""Pal et al. 2019, Optimizing multi-GPU parallelization strategies: the projections of sections 3 to 5.

The paper projects speedups with scaling efficiency 1 from epochs per batch and a model-parallel speedup (equations 3,
5 and 6). Here the hybrid planner does the same from the inputs that the text gives. Where the text gives an answer and
not all inputs, the script solves for the input that the answer implies; what follows from it is no comparison with that
answer, and marked as a circle where it comes back to it.

Run it: ``python examples/paper_003_dlplacer.py``; with ``--json`` it prints a list of rows. Figures and table 1 are in
``paper_003_figures.py``.
"""

from collections.abc import Callable, Mapping
from functools import partial

from _paper_table import Page, Row, Undetermined, assumed, derived, fitted, report, stated

from dlplacer.planning.hybrid.epochs import EpochsTable, StatisticalEfficiency
from dlplacer.planning.hybrid.hybrid import HybridProblem, plan_hybrid
from dlplacer.planning.hybrid.hybrid_plan import BestOfDevices, HybridPlan
from dlplacer.planning.hybrid.step_times import Work
from dlplacer.planning.hybrid.workers import SpeedupTable

EPOCHS = {
    gpus: stated(f"E of Inception-V3 at {gpus} GPUs", epochs, "section 5, read as at 64" if gpus == 64 else "section 5")
    for gpus, epochs in ((32, 4.0), (64, 7.0), (256, 23.0))
}
PLACED = stated("SU^2 of Inception-V3, placed", 1.32, "table 1")
MANUAL = stated("SU^2 of Inception-V3, by an expert", 1.21, "section 5")
GNMT_PIPELINE = stated("SU^2 of GNMT", 1.15, "table 1")
BIG_LSTM_PIPELINE = stated("SU^2 of BigLSTM", 1.22, "table 1")
BIG_LSTM_RATIO = stated("E of BigLSTM at 32 over 16 GPUs", 3.2, "section 5")
SE = stated("scaling efficiency 1", where="section 4.3")
INCEPTION_WIN = stated("Inception-V3, 256 GPUs: hybrid over DP, %", 26.5, "section 5")
GNMT_WIN = stated("GNMT, 256 GPUs: hybrid over DP, %", 8.0, "section 5")


def plan(epochs: Mapping[float, float | None], speedup: float, devices: int) -> HybridPlan:
    """The planner's answer for workers of one or two devices; SE = 1 is what it assumes without a machine."""
    efficiency = StatisticalEfficiency(EpochsTable(epochs))
    return plan_hybrid(HybridProblem(Work(1.0), efficiency, SpeedupTable({2: speedup})), devices)


def implied_ratio(win_percent: float, speedup: float) -> float:
    """E_2N ÷ E_N from equation 6 with SE = 1: what makes a hybrid of two devices per worker win by so much."""
    return 2 * (1 + win_percent / 100) / speedup


AT_128 = derived(
    "E of Inception-V3 at 128 GPUs that the 26.5 % imply",
    lambda last, win, speedup: last / implied_ratio(win, speedup),
    EPOCHS[256],
    INCEPTION_WIN,
    PLACED,
)
GNMT_RATIO = derived("E of GNMT at 256 over 128 GPUs that the 8 % imply", implied_ratio, GNMT_WIN, GNMT_PIPELINE)


def more(ratio: float | None) -> float:
    """A ratio as per cent more."""
    if ratio is None:
        raise SystemExit("the planner found no strategy where the paper has one")
    return 100 * (ratio - 1)


def _won(devices: int, counts: tuple[int, ...], speedup: float, *epochs: float) -> float:
    return more(plan(dict(zip(counts, epochs, strict=True)), speedup, devices).at(devices).against_same_devices)


def _growth(before: int, after: int, counts: tuple[int, ...], *epochs: float) -> float:
    """Speedup of data parallelism on more devices ÷ on fewer."""
    found = plan(dict(zip(counts, epochs, strict=True)), 1.0, after)
    at = [found.speedup(found.at(devices).data_parallel) or 0.0 for devices in (before, after)]
    return at[1] / at[0]


def _needed(devices: int, counts: tuple[int, ...], *epochs: float) -> float:
    """SU^2 from which a hybrid wins (eq. 6)."""
    return plan(dict(zip(counts, epochs, strict=True)), 1.0, devices).speedup_needed(devices) or 0.0


def _inception() -> list[Row]:
    name, where = "Inception-V3", "section 5, figure 5(a)"
    two, four = (EPOCHS[32], EPOCHS[64], SE), (EPOCHS[32], EPOCHS[64], AT_128, EPOCHS[256], SE)
    three = (EPOCHS[32], EPOCHS[64], AT_128, SE)
    counts = (32, 64, 128, 256)
    rows = [
        Row(f"{name}, 64 GPUs: hybrid over DP, %", where, "15.5", partial(_won, 64, (32, 64)), (PLACED, *two)),
        Row(f"{name}: DP at 64 over 32 GPUs", where, None, partial(_growth, 32, 64, (32, 64)), two),
        Row(f"{name}: SU^2 needed on 64 GPUs (eq. 6)", where, None, partial(_needed, 64, (32, 64)), two),
        Row(
            f"{name}, by an expert, 64 GPUs: hybrid over DP, %",
            where,
            None,
            partial(_won, 64, (32, 64)),
            (MANUAL, *two),
        ),
        Row(
            f"{name}: epochs at 128 GPUs that the 26.5 % imply",
            where,
            None,
            lambda last, win, speedup: last / implied_ratio(win, speedup),
            (EPOCHS[256], INCEPTION_WIN, PLACED, SE),
        ),
        Row(
            f"{name}, 256 GPUs: hybrid over DP, %; E at 128 from that",
            where,
            "26.5",
            partial(_won, 256, counts),
            (PLACED, *four),
            "E at 128 was solved from the answer",
        ),
        Row(
            f"{name}, 256 GPUs: hybrid over DP, %; E at 128 by a line",
            where,
            "26.5",
            partial(_won, 256, (32, 64, 256)),
            (PLACED, EPOCHS[32], EPOCHS[64], EPOCHS[256], SE, assumed("E at 128 GPUs lies on the line from 64 to 256")),
            "an independent, rough check: the text has no E at 128",
        ),
        Row(f"{name}, 128 GPUs: hybrid over DP, %", where, None, partial(_won, 128, counts[:3]), (PLACED, *three)),
        Row(f"{name}: SU^2 needed on 128 GPUs (eq. 6)", where, None, partial(_needed, 128, counts[:3]), three),
        Row(f"{name}: SU^2 needed on 256 GPUs (eq. 6)", where, None, partial(_needed, 256, counts), four),
        Row(
            f"{name}, by an expert, 128 GPUs: hybrid over DP, %",
            where,
            None,
            partial(_won, 128, counts[:3]),
            (MANUAL, *three),
        ),
        Row(
            f"{name}, by an expert, 256 GPUs: hybrid over DP, %",
            where,
            None,
            partial(_won, 256, counts),
            (MANUAL, *four),
        ),
        Row(f"{name}: DP at 256 over 128 GPUs", where, None, partial(_growth, 128, 256, counts), four),
        Row(f"{name}: hybrid on 128 over DP on 256 GPUs", where, None, _fewer, (PLACED, *four)),
    ]
    batch = stated("global batch at 32 GPUs", 2048, "section 5"), stated("GPUs", 32, "section 5")
    last = stated("global batch at 256 GPUs", 16384, "section 5"), stated("GPUs", 256, "section 5")
    rows += [
        Row(f"{name}: mini-batch, from 32 GPUs", "section 5", None, _share, batch),
        Row(f"{name}: mini-batch, from 256 GPUs", "section 5", None, _share, last),
        Row(
            f"{name}: gain of DLPlacer over the expert, %",
            "section 5",
            None,
            lambda placed, manual: 100 * (placed / manual - 1),
            (PLACED, MANUAL),
        ),
    ]
    return rows


def _share(total: float, count: float) -> float:
    return total / count


def _fewer(speedup: float, *epochs: float) -> float:
    found = plan(dict(zip((32, 64, 128, 256), epochs, strict=True)), speedup, 256)
    return (found.speedup(found.at(128).hybrid) or 0.0) / (found.speedup(found.at(256).data_parallel) or 1.0)


def _others() -> list[Row]:
    gnmt, lstm = "figure 5(b)", "figure 5(c)"
    batch = stated("global batch of BigLSTM", 2048, "section 5"), stated("16-way DP", 16, "section 5")
    return [
        Row(
            "GNMT: E at 256 over 128 GPUs that the 8 % imply", gnmt, None, implied_ratio, (GNMT_WIN, GNMT_PIPELINE, SE)
        ),
        Row(
            "GNMT, 256 GPUs: hybrid over DP, %; E from that",
            gnmt,
            "8",
            lambda speedup, ratio: more(plan({128: 1.0, 256: ratio}, speedup, 256).at(256).against_same_devices),
            (GNMT_PIPELINE, GNMT_RATIO, SE),
            "the ratio of epochs was solved from the answer; the text gives no epochs for any number of GPUs",
        ),
        Row(
            "GNMT: DP at 256 over 128 GPUs",
            gnmt,
            None,
            lambda ratio: _growth(128, 256, (128, 256), 1.0, ratio),
            (GNMT_RATIO, SE),
        ),
        Row("BigLSTM: mini-batch", "section 5", None, _share, batch),
        Row(
            "BigLSTM, 32 GPUs: hybrid over DP on 32, ratio",
            lstm,
            None,
            _big_lstm(_on_32),
            (BIG_LSTM_PIPELINE, BIG_LSTM_RATIO, SE),
        ),
        Row(
            "BigLSTM, 32 GPUs: hybrid over the best DP",
            lstm,
            "1.22",
            _big_lstm(lambda budget: budget.against_best_data_parallel or 0.0),
            (BIG_LSTM_PIPELINE, BIG_LSTM_RATIO, SE),
            "the best DP is 16-way, so the ratio equals the speedup of table 1 by definition",
        ),
        Row(
            "BigLSTM: DP at 32 over 16 GPUs",
            lstm,
            None,
            lambda ratio: _growth(16, 32, (16, 32), 1.0, ratio),
            (BIG_LSTM_RATIO, SE),
        ),
        Row(
            "BigLSTM: SU^2 needed on 32 GPUs (eq. 6)",
            lstm,
            None,
            lambda ratio: _needed(32, (16, 32), 1.0, ratio),
            (BIG_LSTM_RATIO, SE),
            "below 1: leaving half of the GPUs idle is better than 32-way DP",
        ),
        Row(
            "BigLSTM: devices that the best DP uses of 32",
            lstm,
            "16",
            lambda few, many, ratio: few if ratio > many / few else many,
            (stated("fewer GPUs", 16, "section 5"), stated("more GPUs", 32, "section 5"), BIG_LSTM_RATIO),
            "the text has E only at 16 and 32 GPUs, so 16 is one of two inputs",
        ),
    ]


def _big_lstm(part: Callable[[BestOfDevices], float]) -> Callable[..., float]:
    def found(speedup: float, ratio: float) -> float:
        return part(plan({16: 1.0, 32: ratio}, speedup, 32).at(32))

    return found


def _on_32(budget: BestOfDevices) -> float:
    return budget.against_same_devices or 0.0


def _scaling_efficiency() -> list[Row]:
    """Section 5's last paragraph: what SE_2N ÷ SE_N < 0.9 of large LSTM networks does to eq. 6."""
    ratio = stated("SE_2N / SE_N of large LSTM networks, at most", 0.9, "section 5")
    where = "section 5, eq. 6"
    return [
        Row(
            "GNMT: SU^2 needed on 256 GPUs (eq. 6) with SE_2N / SE_N = 0.9",
            where,
            None,
            lambda efficiency, epochs: 2 * efficiency / epochs,
            (ratio, GNMT_RATIO),
        ),
        Row(
            "GNMT, 256 GPUs: hybrid over DP, % with SE_2N / SE_N = 0.9",
            where,
            None,
            lambda speedup, efficiency, epochs: more(speedup * epochs / (2 * efficiency)),
            (GNMT_PIPELINE, ratio, GNMT_RATIO),
        ),
        Row(
            "BigLSTM, 32 GPUs: hybrid over DP on 32 with SE_2N / SE_N = 0.9",
            where,
            None,
            lambda speedup, efficiency, epochs: speedup * epochs / (2 * efficiency),
            (BIG_LSTM_PIPELINE, ratio, BIG_LSTM_RATIO),
        ),
    ]


def _figure_3() -> list[Row]:
    """Figure 3's hypothetical network, with epochs that fit what the text says of it."""
    epochs = tuple(
        fitted(f"E at {count} GPUs", value) for count, value in ((16, 4.0), (32, 5.0), (64, 10.0), (128, 22.0))
    )
    gains = stated("MP gain on 2 GPUs, %", 45, "figure 3"), stated("MP gain on 4 GPUs, %", 65, "figure 3")

    def ratio(devices: int, degrees: tuple[int, int], two: float, four: float, *epochs: float) -> float:
        table = SpeedupTable({2: 1 + two / 100, 4: 1 + four / 100})
        efficiency = StatisticalEfficiency(EpochsTable(dict(zip((16, 32, 64, 128), epochs, strict=True))))
        found = plan_hybrid(HybridProblem(Work(1.0), efficiency, table, degrees=(2, 4)), devices).at(devices)
        first, second = (found.by_degree[degree] for degree in degrees)
        return second.effort_s / first.effort_s

    cases = {
        "32 x 2 over 64-way DP": (64, (2, 1)),
        "16 x 4 over 64-way DP": (64, (4, 1)),
        "32 x 2 over 16 x 4": (64, (2, 4)),
    }
    return [
        Row(
            f"Figure 3: {name}",
            "section 3.4",
            None,
            partial(ratio, devices, degrees),
            (*gains, *epochs, assumed("scaling efficiency 1")),
            "above 1 by construction, because the epochs were chosen for this, as the text says",
        )
        for name, (devices, degrees) in cases.items()
    ]


def _machines() -> list[Row]:
    """Sections 4.1 and 4.4: the machine."""
    fast, slow = assumed("V100, TFLOP/s", 15.7), assumed("GK210, half of a K80, TFLOP/s", 4.37)
    tensor = assumed("V100 with tensor cores, TFLOP/s", 125.0)
    text = "the text says 14 times the FLOPs of a K80; only tensor cores against a whole K80 come near"
    board = assumed("a whole K80, TFLOP/s", 8.74)
    whole = fitted("read as tensor cores against a whole board")
    emulated = stated("GPUs of the emulated system", 16, "section 4.2"), stated("GPUs of the DGX-1", 4, "section 4.1")
    return [
        Row("V100 over a GPU of a K80, float32", "section 4.4", "14", _share, (fast, slow), text),
        Row("V100 with tensor cores over a K80", "section 4.4", "14", _share, (tensor, board, whole), text),
        Row(
            "Mini-batches of a GPU that emulates 16",
            "section 4.2",
            "4",
            _share,
            emulated,
            "its own 4 GPUs are an input",
        ),
    ]


PAGE = Page(
    "Pal et al. 2019 (DLPlacer): projections, scaling efficiency 1",
    (*_inception(), *_others(), *_scaling_efficiency(), *_figure_3(), *_machines()),
    (
        Undetermined("figure 4", "only curves; the text gives E of Inception-V3 at 32, 64 and 256 GPUs, and one ratio"),
        Undetermined("figure 5, absolute speedups", "E of one GPU is not given; it cancels in all ratios above"),
        Undetermined("GNMT", "the text gives no epochs, and only says that they grow rapidly beyond 64 GPUs"),
    ),
)


if __name__ == "__main__":
    report(PAGE)
