"""Pal et al. 2019, Optimizing multi-GPU parallelization strategies: every number that its text determines.

The paper projects speedups with scaling efficiency 1 from epochs per batch and a model-parallel speedup (equations 3,
5 and 6). Here the hybrid planner does the same from the same inputs.
"""

from collections.abc import Mapping

from _paper_table import Number, Unreproducible, report

from dlplacer.planning.hybrid.epochs.epochs import EpochsTable, StatisticalEfficiency
from dlplacer.planning.hybrid.hybrid import HybridProblem, plan_hybrid
from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
from dlplacer.planning.hybrid.placed_workers import SpeedupTable
from dlplacer.planning.hybrid.step_workload import Work

INCEPTION_V3 = {32: 4.0, 64: 7.0, 128: 12.0, 256: 23.0}
"""Epochs at 32, 64 and 256 GPUs are in section 5; the 12 at 128 are those that make the 26.5 % come out."""

GNMT = {128: 1.0, 256: 1.878}
"""Relative to those at 128 GPUs. The 8 % of the text puts the ratio into [1.870, 1.887); 1.878 makes it 7.99 %."""

GNMT_WHOLE = {128: 8.0, 256: 15.0}
"""The smallest whole numbers of epochs with a ratio in that interval."""

BIG_LSTM: Mapping[float, float | None] = {16: 1.0, 32: 3.2, 64: None}
"""Epochs relative to those at 16 GPUs; beyond 32 nothing converged."""

PLACED, MANUAL = 1.32, 1.21
GNMT_PIPELINE, BIG_LSTM_PIPELINE = 1.15, 1.22
DERIVED = "E at 128 derived"


def plan(epochs: Mapping[float, float | None], speedup: float, devices: int) -> HybridPlan:
    """The planner's answer for workers of one or two devices; SE = 1 is what it assumes without a machine."""
    efficiency = StatisticalEfficiency(EpochsTable(epochs))
    return plan_hybrid(HybridProblem(Work(1.0), efficiency, SpeedupTable({2: speedup})), devices)


def more(ratio: float | None) -> float:
    """A ratio as per cent more."""
    if ratio is None:
        raise SystemExit("the planner found no strategy where the paper has one")
    return 100 * (ratio - 1)


def inception() -> list[Number]:
    placed, manual = plan(INCEPTION_V3, PLACED, 256), plan(INCEPTION_V3, MANUAL, 256)

    name = "Inception-V3"
    return [
        Number(f"{name}, 64 GPUs: hybrid over DP, %", 15.5, more(placed.at(64).against_same_devices)),
        Number(
            f"{name}, 256 GPUs: hybrid over DP, %",
            26.5,
            more(placed.at(256).against_same_devices),
            DERIVED,
            "the text gives no E at 128 GPUs; 26.5 % holds for E = 12.00 alone (11.995 to 12.005), so this row is "
            "consistent rather than independent, and the next one is what it implies",
        ),
        Number(f"{name}, 128 GPUs: hybrid over DP, %", None, more(placed.at(128).against_same_devices), DERIVED),
        Number(f"{name}: DP speedup at 64 GPUs", None, placed.speedup(placed.at(64).data_parallel) or 0.0),
        Number(f"{name}: hybrid speedup at 64 GPUs", None, placed.speedup(placed.at(64).hybrid) or 0.0),
        Number(f"{name}: hybrid speedup at 256 GPUs", None, placed.speedup(placed.at(256).hybrid) or 0.0, DERIVED),
        Number(f"{name}: hybrid on 128 GPUs over DP on 256, ratio", None, _fewer(placed), DERIVED),
        Number(f"{name}: SU^2 needed at 32 workers (eq. 6)", None, threshold(32)),
        Number(f"{name}: SU^2 needed at 64 workers (eq. 6)", None, threshold(64), DERIVED),
        Number(f"{name}: SU^2 needed at 128 workers (eq. 6)", None, threshold(128), DERIVED),
        Number(f"{name}, expert placement, 64 GPUs, %", None, more(manual.at(64).against_same_devices)),
        Number(f"{name}, expert placement, 256 GPUs, %", None, more(manual.at(256).against_same_devices), DERIVED),
    ]


def others() -> list[Number]:
    gnmt, big_lstm = plan(GNMT, GNMT_PIPELINE, 256), plan(BIG_LSTM, BIG_LSTM_PIPELINE, 64)
    whole = plan(GNMT_WHOLE, GNMT_PIPELINE, 256)
    return [
        Number(
            "GNMT, 256 GPUs: hybrid over DP, %",
            8.0,
            more(gnmt.at(256).against_same_devices),
            "ratio of E derived",
            "the text gives no epochs; its 8 % determines only that E_256 / E_128 lies in [1.870, 1.887), and 1.878 "
            "from there is the input here, so this row is consistent rather than independent",
        ),
        Number("GNMT with 8, 15 epochs at 128, 256 GPUs, %", None, more(whole.at(256).against_same_devices), "assumed"),
        Number(
            "BigLSTM, 32 GPUs: hybrid over best DP, %",
            22.0,
            more(big_lstm.at(32).against_best_data_parallel),
            "yes",
            "the paper's 22 % compares 32 GPUs with data parallelism on 16, its best number: so it is SU^2 by "
            "definition; on the same 32 GPUs the hybrid is 1.95 times as fast (next row)",
        ),
        Number("BigLSTM, 32 GPUs: hybrid over DP on 32, ratio", None, big_lstm.at(32).against_same_devices or 0.0),
        Number("BigLSTM: DP on 32 over DP on 16 GPUs, ratio", None, _slowdown(big_lstm)),
    ]


def threshold(workers: int) -> float:
    """Equation 6 with scaling efficiency 1 and workers of two devices: SU^2 above which the hybrid wins."""
    return 2 * INCEPTION_V3[workers] / INCEPTION_V3[2 * workers]


def _fewer(placed: HybridPlan) -> float:
    return (placed.speedup(placed.at(128).hybrid) or 0.0) / (placed.speedup(placed.at(256).data_parallel) or 1.0)


def _slowdown(big_lstm: HybridPlan) -> float:
    at = {devices: big_lstm.speedup(big_lstm.at(devices).data_parallel) or 0.0 for devices in (16, 32)}
    return at[32] / at[16]


MISSING = (
    Unreproducible("figure 3", "a hypothetical example; only its curves carry numbers"),
    Unreproducible("figure 4", "curves; the text gives E of Inception-V3 at 32, 64 and 256 GPUs, and one ratio"),
    Unreproducible("figure 5, absolute speedups", "E of one GPU is not given; it cancels in all ratios above"),
    Unreproducible("table 1, speedups 1.32, 1.15, 1.22", "measured on V100 GPUs; here they are inputs"),
    Unreproducible("GNMT below 128 GPUs", "no epochs are given, only that they grow rapidly beyond 64 GPUs"),
)


def main() -> None:
    report("Pal et al. 2019 (DLPlacer), scaling efficiency 1", [*inception(), *others()], MISSING)


if __name__ == "__main__":
    main()
