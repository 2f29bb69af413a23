"""Bubbles of Qi et al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241): table 5, from the times of table 9."""

import pytest

from dlplacer.planning.pipeline.pipeline_plan import Hop, StageTimes, play
from dlplacer.planning.pipeline.schedules import order_of

# Stages, micro-batches; T_F, T_B, T_W, T_comm in ms; bubble rates of 1F1B and ZB-1p.
ROWS = [
    (8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585),
    (8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323),
    (8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045),
    (8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397),
    (16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.1088),
    (16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0576),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1421),
    (32, 128, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1109),
    (32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0594),
]


def bubble(schedule: str, stages: int, count: int, forward: float, inputs: float, weights: float, comm: float) -> float:
    """(cost − m (T_F + T_B + T_W)) ÷ cost, where cost is the longest span of a stage."""
    times = [StageTimes(forward, inputs + weights, weights)] * stages
    timeline = play(order_of(schedule, stages, count), times, [Hop(comm, comm)] * (stages - 1))
    cost = max(spans[-1].end_s - spans[0].begin_s for spans in timeline.ranks)
    return 1 - count * (forward + inputs + weights) / cost


@pytest.mark.parametrize("row", ROWS)
def test_bubbles_are_those_published(row: tuple[float, ...]) -> None:
    stages, count, *times, plain, zero_bubble = row
    assert bubble("1f1b", int(stages), int(count), *times) == pytest.approx(plain, abs=0.002)
    assert bubble("zero-bubble", int(stages), int(count), *times) == pytest.approx(zero_bubble, abs=0.02)
