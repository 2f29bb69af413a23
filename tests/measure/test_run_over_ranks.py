"""`run_over_ranks`: the figures of a run over processes belong together, and its numbers are those of one process."""

import pytest
from processes import run_ranks
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.frontend import capture
from dlplacer.measure.run_plan import run_over_ranks
from dlplacer.measure.steps import joined, median_recording
from dlplacer.models import mlp


@needs_two_cores
def test_figures_of_a_replicated_run() -> None:
    plan = random_plan(capture(mlp(batch_size=4)), 2, seed=1)

    def work(rank: int):
        job, names = mlp(batch_size=8), ["rank0/cpu:0", "rank1/cpu:1"]
        return run_over_ranks(job, plan, names, steps=2, warmup=1, replicas=2, bucket_bytes=40_000)

    runs = run_ranks(4, work)
    report, predicted, measured = runs[0].report, runs[0].predicted, runs[0].measured
    assert all(other.report == report for other in runs[1:])
    assert (report.replicas, report.ranks) == (2, 4)
    assert report.steps == 2
    assert report.buckets >= 2
    assert report.prediction_error == abs(report.predicted_s - report.measured_s) / report.measured_s
    assert report.measured_speedup == 2 * report.baseline_s / report.measured_s
    assert report.predicted_speedup == 2 * report.baseline_s / report.predicted_s
    assert report.max_abs_error < 1e-5
    assert report.all_reduce_latency_s + report.all_reduce_s_per_byte > 0
    assert len(report.devices) == 4
    # Of the first replica: its devices, and the network that they share.
    assert set(predicted.placement.values()) == set(measured.placement.values()) == {"d0", "d1", "network"}


@needs_two_cores
def test_one_replica_over_two_processes() -> None:
    plan = random_plan(capture(mlp(batch_size=4)), 2, seed=2)

    def work(rank: int):
        job = mlp(batch_size=4)
        return run_over_ranks(job, plan, ["cpu:0", "cpu:1"], steps=1, warmup=0)

    report = run_ranks(2, work)[0].report
    assert (report.replicas, report.buckets, report.all_reduce_s_per_byte) == (1, 0, 0.0)
    assert report.max_abs_error < 1e-5
    assert report.predicted_s > 0
    assert report.predicted_speedup > 0


# Every rank counts from the begin of its step, which all begin together. Rank 2 is another replica.
def test_ranks_are_joined_where_the_first_op_begins() -> None:
    first = (1.0, {"d0": [("a", 0.1, 0.2)]})
    second = (2.0, {"d1": [("b", 0.3, 0.8)], "network@rank1": [("c", 0.8, 0.9)]})
    other = (3.0, {"d0": [("a", 0.0, 9.0)]})
    found = joined([first, second, other], [0, 0, 1])
    assert found.spans["d0"] == [("a", 0.0, pytest.approx(0.1))]
    assert found.spans["d1"] == [("b", pytest.approx(0.2), pytest.approx(0.7))]
    assert found.spans["network"] == [("c", pytest.approx(0.7), pytest.approx(0.8))]
    assert found.length_s == pytest.approx(0.8)
    assert found.wall_s == 3.0
    assert median_recording([found, found.__class__({}, 1.0)]).wall_s == 1.0
