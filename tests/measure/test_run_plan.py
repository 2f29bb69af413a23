"""`run`: prediction and measurement side by side, and how steps are timed."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from dlplacer.measure.fidelity.alternation import alternated_times
from dlplacer.measure.fidelity.eager import EagerStep
from dlplacer.measure.fidelity.run_plan import run
from frontend.torch.small_models import build
from runtime.random_plans import needs_two_cores, random_plan
from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.frontend import Job, capture
from dlplacer.problem.simulate import replay_plan
from dlplacer.runtime.devices.host_device import HostDevice

CPUS = ["cpu:0", "cpu:1"]


@needs_two_cores
@pytest.mark.parametrize("optimizer", ["momentum", pytest.param(None, marks=pytest.mark.slow)])
def test_the_figures_of_a_training_run_belong_together(optimizer: str | None) -> None:
    job = replace(build("branches"), optimizer=optimizer)
    plan = random_plan(capture(job), seed=3)
    done = run(job, plan, CPUS, steps=3, warmup=1)
    report = done.report
    assert report.measured_speedup == report.baseline_s / report.measured_s
    assert report.prediction_error == abs(report.predicted_s - report.measured_s) / report.measured_s
    assert report.predicted_quartiles_s is not None
    low_s, high_s = report.predicted_quartiles_s
    assert low_s <= done.predicted.makespan_s + report.host_s <= high_s  # the one nearest to their mean
    assert 0 < report.host_s < report.predicted_s
    assert report.predicted_speedup == report.baseline_s / report.predicted_s
    serial_s = sum(op.time_on("cpu-core") or 0.0 for op in done.predicted.graph.ops)
    assert serial_s / 2 <= report.predicted_s  # two devices
    assert report.eager_all_cores_s is not None
    assert min(report.baseline_s, report.eager_all_cores_s, report.measured_s) > 0
    assert report.max_abs_error < 1e-5
    assert report.step == "joint"
    assert 3 <= report.steps <= 12
    assert report.plan_makespan_s == plan.makespan_s
    assert report.devices == tuple(CPUS)
    assert json.loads(json.dumps(report.to_dict()))["use"][1]["device"] == "cpu:1"
    differences = [abs(offender.difference_s) for offender in report.offenders]
    assert differences == sorted(differences, reverse=True)
    assert len(differences) == 10
    assert [device.id for device in done.predicted.topology.devices] == CPUS
    assert done.predicted.placement == {
        op: dict(zip(("d0", "d1"), CPUS, strict=True))[device] for op, device in plan.placement.items()
    }


@needs_two_cores
def test_an_inference_run_compares_with_the_module_in_evaluation_mode() -> None:
    job = replace(build("convolutions"), mode="infer")  # with targets, which inference leaves alone
    report = run(job, random_plan(capture(job)), CPUS, steps=1, warmup=0).report
    assert report.max_abs_error < 1e-6


def test_the_prediction_owes_nothing_to_the_times_in_the_plan() -> None:
    job = build("linear")
    plan = random_plan(capture(job), device_count=1)
    hours = replace(plan.graph, ops=tuple(replace(op, time_s=3600.0) for op in plan.graph.ops))
    report = run(job, replay_plan(plan, hours, plan.topology), ["cpu:0"], steps=1).report
    assert report.predicted_s < 3600
    assert report.plan_makespan_s >= 3600
    assert report.predicted_speedup == report.baseline_s / report.predicted_s


def test_a_run_without_steps_is_refused() -> None:
    job = build("linear")
    with pytest.raises(InputError, match="a run of 0 steps after 3 cannot be timed"):
        run(job, random_plan(capture(job), device_count=1), ["cpu:0"], steps=0)


@pytest.mark.parametrize("name", ["weighted loss", "loss inside", "mixed precision", "keywords"])
def test_the_eager_step_is_plain_pytorch(name: str) -> None:
    from runtime.random_plans import plain_loss

    job, plain = build(name), build(name)
    loss = plain_loss(plain, plain.module)
    loss.backward()  # type: ignore[no-untyped-call]
    with closing(HostDevice("host", "host")) as device:
        eager = EagerStep([job], job.module, device)
        for _ in range(2):
            assert torch.equal(eager.step()[0], loss.detach())
    for ours, theirs in zip(job.module.parameters(), plain.module.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_the_eager_step_takes_the_mode_of_the_job() -> None:
    module = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
    x = torch.randn(4, 8)
    with closing(HostDevice("host", "host")) as device:
        eager = EagerStep([Job(module.train(), (x,), mode="infer")], module, device)
        assert torch.equal(eager.step()[0], eager.step()[0])
    assert module[1].num_batches_tracked == 0


def by_clock(clock: list[float]) -> Callable[[Callable[[], object]], float]:
    """Runs a step and returns by how much it moves a clock."""

    def timed(step: Callable[[], object]) -> float:
        begin = clock[0]
        step()
        return clock[0] - begin

    return timed


# Every call of a variant takes the next of its times: the first is slow, then it has settled.
def test_times_after_they_have_settled() -> None:
    clock = [0.0]
    calls: list[str] = []

    def variant(name: str, times: list[float]) -> Callable[[], None]:
        def step() -> None:
            calls.append(name)
            clock[0] += times.pop(0) if len(times) > 1 else times[0]

        return step

    times = alternated_times(
        {"a": variant("a", [90.0, 30.0, 15.0, 15.0, 15.0, 20.0, 40.0]), "b": variant("b", [50.0, 50.0, 60.0])},
        3,
        1,
        by_clock(clock),
        {},
    )
    # a warms up with 90, 30, 15, 15 and is timed with 15, 20, 40; b warms up with 50, 50 and is timed with 60, 60, 60.
    assert times == {"a": [15.0, 20.0, 40.0], "b": [60.0, 60.0, 60.0]}
    assert calls == [*"aaaa", *"bb", *"ab", *"ba", *"ab"]


# Warmed up with 1, 1; then in each turn the step before, untimed, and the step.
def test_a_short_step_is_timed_behind_an_untimed_one() -> None:
    clock = [0.0]
    calls: list[str] = []

    def step(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            calls.append(name)
            clock[0] += seconds

        return run

    steps = {"short": step("s", 0.125), "profile": step("p", 0.125), "long": step("l", 2.0)}
    times = alternated_times(steps, 1, 0, by_clock(clock), {"profile": step("u", 9.0)})
    assert times == {"short": [0.125], "profile": [0.125], "long": [2.0]}
    assert "".join(calls) == "ssppll" + "ssupl"


# What ran before has left its data in the caches: one step is not enough to drive it out where a step is short.
@pytest.mark.parametrize(("seconds", "untimed"), [(0.002, 4), (0.03125, 3), (0.0625, 1), (0.5, 1), (1.0, 0)])
def test_the_shorter_a_step_the_more_untimed_ones_precede_it(seconds: float, untimed: int) -> None:
    clock, calls = [0.0], []

    def step() -> None:
        calls.append("timed")
        clock[0] += seconds

    alternated_times({"a": step}, 2, 0, by_clock(clock), {"a": lambda: calls.append("untimed")})
    assert calls == ["timed"] * 2 + (["untimed"] * untimed + ["timed"]) * 2


# 10 rounds of 0.1 s, of which every other takes a half longer: a spread of 0.04 s is 3 % of 0.12 s only after 123.
@pytest.mark.parametrize(
    ("seconds", "rounds"),
    [((0.1, 0.1), 10), ((0.1, 0.15), 40), ((1.2, 1.8), 21), ((3.0, 4.5), 10)],
    ids=["steady", "at most four times as many", "for 30 s", "no more than 30 s"],
)
def test_what_varies_is_timed_more_often(seconds: tuple[float, float], rounds: int) -> None:
    clock, taken, told = [0.0], [0], []

    def step() -> None:
        clock[0] += seconds[taken[0] % 2]
        taken[0] += 1

    timed = alternated_times(
        {"a": step}, 10, 0, by_clock(clock), {"a": lambda: None}, lambda *heard: told.append(heard)
    )
    assert len(timed["a"]) == rounds
    assert told[:2] == [(-1, 10), (0, 10)]
    assert told[-1] == (rounds - 1, 10 if rounds == 10 else 40)


def test_warming_up_ends_after_twelve_steps_that_never_settle() -> None:
    clock, steps = [0.0], []

    def step() -> None:
        steps.append(1.0 + len(steps) % 2)
        clock[0] += steps[-1]

    assert alternated_times({"a": step}, 1, 0, by_clock(clock), {}) == {"a": [1.0]}
    assert len(steps) == 12 + 1
