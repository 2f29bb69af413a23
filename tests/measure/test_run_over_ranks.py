"""`run_over_ranks`: the figures of a run over processes belong together, and its numbers are those of one process."""

from dataclasses import replace

import pytest
from dlplacer.measure.fidelity.prediction import joined_samples
from dlplacer.measure.fidelity.run_plan import OverRanks, run_over_ranks
from processes import run_ranks
from runtime.random_plans import needs_two_cores, random_plan

from dlplacer.core.errors import InputError, MismatchError
from dlplacer.frontend import Job, capture
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.models import branches, mlp
from dlplacer.runtime.distributed.replicate import replicated_plan


@needs_two_cores
@pytest.mark.parametrize(
    ("names", "optimizer"),
    [("rank0/cpu:0,rank1/cpu:1", None), pytest.param("rank0/cpu:0,rank0/cpu:1", "adam", marks=pytest.mark.slow)],
)
def test_figures_of_a_replicated_run(names: str, optimizer: str | None) -> None:
    plan = random_plan(capture(replace(mlp(batch_size=4), optimizer=optimizer)), 2, seed=1)
    ranks = 4 if "rank1" in names else 2

    def work(rank: int):
        job = replace(mlp(batch_size=8), optimizer=optimizer)
        over = OverRanks(replicas=2, bucket_bytes=40_000)
        return run_over_ranks(job, plan, names.split(","), over, steps=2, warmup=1)

    runs = run_ranks(ranks, work)
    report, predicted, measured = runs[0].report, runs[0].predicted, runs[0].measured
    assert all(other.report == report for other in runs[1:])
    assert (report.replicas, report.ranks) == (2, ranks)
    assert 2 <= report.steps <= 8
    assert report.buckets >= 2
    assert report.prediction_error == abs(report.predicted_s - report.measured_s) / report.measured_s
    assert report.measured_speedup == 2 * report.baseline_s / report.measured_s
    assert report.predicted_speedup == 2 * report.baseline_s / report.predicted_s
    assert report.max_abs_error < 1e-5
    assert report.full_batch_error < 1e-5
    assert report.all_reduce_latency_s + report.all_reduce_s_per_byte > 0
    told = report.to_dict()
    assert told["devices"] == report.devices
    assert (told["replicas"], told["ranks"], told["step"]) == (2, ranks, "joint")
    assert not {"over_ranks", "beside", "eager_all_cores_s", "dispatch_s"} & told.keys()
    assert len(report.devices) == 4
    assert report.draws == "none"
    assert [use.device for use in report.use] == [device.id for device in measured.topology.devices]
    assert {use.device for use in report.use} >= {"rank0/d0", "rank0/network", f"rank{ranks - 1}/d1"}
    assert len(report.use) == 4 + ranks
    for use in report.use:
        assert use.predicted_busy_s + use.predicted_idle_s == pytest.approx(predicted.makespan_s)
        assert use.measured_busy_s + use.measured_idle_s == pytest.approx(measured.makespan_s)
    assert len(report.offenders) == 10
    gaps = [abs(offender.difference_s) for offender in report.offenders]
    assert gaps == sorted(gaps, reverse=True)
    assert {offender.op for offender in report.offenders} <= plan.placement.keys() | {
        f"{kind}.{number}" for kind in ("pack", "all_reduce", "unpack") for number in range(report.buckets)
    }


@needs_two_cores
def test_one_process_draws_what_every_replica_draws() -> None:
    plan = random_plan(capture(branches(batch_size=2, image_size=8, count=2, dropout=0.5)), 2, seed=1)

    def work(rank: int):
        job = branches(batch_size=4, image_size=8, count=2, dropout=0.5)
        return run_over_ranks(job, plan, ["rank0/cpu:0", "rank0/cpu:1"], OverRanks(replicas=2), steps=1, warmup=0)

    report = run_ranks(2, work)[0].report
    assert report.draws == "same"
    assert report.max_abs_error < 1e-5
    assert report.full_batch_error is None


@needs_two_cores
def test_one_replica_over_two_processes() -> None:
    plan = random_plan(capture(mlp(batch_size=4)), 2, seed=2)

    def work(rank: int):
        job = mlp(batch_size=4)
        return run_over_ranks(job, plan, ["cpu:0", "cpu:1"], steps=1, warmup=0)

    report = run_ranks(2, work)[0].report
    assert (report.replicas, report.buckets, report.all_reduce_s_per_byte) == (1, 0, 0.0)
    assert report.max_abs_error < 1e-5
    assert report.full_batch_error is None
    assert report.predicted_s > 0
    assert report.predicted_speedup > 0


# Ranks 0 and 1 are the first replica, with one op each; 2 and 3 the second.
def test_samples_of_the_ranks_of_a_replica_come_together() -> None:
    samples = [
        [{"a": rank + step / 10} if rank % 2 else {"b": rank + step / 10} for step in (1, 2)] for rank in range(4)
    ]
    assert joined_samples(samples, [0, 0, 1, 1]) == [
        [{"b": 0.1, "a": 1.1}, {"b": 2.1, "a": 3.1}],
        [{"b": 0.2, "a": 1.2}, {"b": 2.2, "a": 3.2}],
    ]


def test_only_training_is_run_over_processes() -> None:
    trained = mlp()
    with pytest.raises(InputError, match="is timed in training"):
        run_over_ranks(Job(trained.module, trained.args, mode="infer"), None, ["cpu:0"])
    with pytest.raises(InputError, match="a run of 0 steps after 3"):
        run_over_ranks(trained, None, ["cpu:0"], steps=0)


def test_a_plan_for_other_replicas_is_refused() -> None:
    plan = replicated_plan(random_plan(capture(mlp(batch_size=4)), 2), 2, AlphaBeta(1e-4, 1e-9))
    with pytest.raises(MismatchError, match="was made for 2 replicas, and 3 are to run"):
        run_over_ranks(mlp(batch_size=12), plan, ["cpu:0", "cpu:1"], OverRanks(replicas=3))
