"""What a plan is predicted to take when steps are made, not measured."""

import copy
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pytest
from frontend.torch.small_models import build
from report.plot.plans import diamond
from runtime.random_plans import needs_two_cores, placed_at_random, random_plan

from dlplacer.core.plan import Plan
from dlplacer.core.topology import Link
from dlplacer.frontend import capture
from dlplacer.measure.fidelity.placed_job import PlacedJob
from dlplacer.measure.fidelity.prediction import Predictor, used_devices
from dlplacer.measure.fidelity.process_group import OneProcess
from dlplacer.measure.fidelity.run_plan import run
from dlplacer.measure.fidelity.step_profiler import PlacedProfiler, PlainStep
from dlplacer.problem.simulate import replay_plan
from dlplacer.runtime.placed.apply import apply
from dlplacer.runtime.profile.op_times import StepSample, with_measured_times

OP_S = 1e-3


class MadeSteps:
    """Every op takes a millisecond alone, and `slower` milliseconds side by side."""

    def __init__(self, plan: Plan, slower: float) -> None:
        self.ops, self.slower = [op.id for op in plan.graph.ops], slower
        self.positions: set[tuple[int, ...]] = set()

    def recorded_steps(self, positions: Sequence[int]) -> list[StepSample]:
        self.positions.add(tuple(positions))
        op_s = OP_S * (self.slower if len(positions) > 1 else 1.0)
        return [StepSample(dict.fromkeys(self.ops, op_s), host_s=0.25) for _ in positions]

    def plain_steps(self, positions: Sequence[int]) -> list[PlainStep]:
        return [PlainStep(sample.wall_s, sample.host_s) for sample in self.recorded_steps(positions)]


def predicted(placed: PlacedJob, slower: float) -> tuple[Predictor, MadeSteps, OneProcess]:
    """After four rounds of made steps; tensors change devices in no time."""
    group, steps = OneProcess(placed.devices), MadeSteps(placed.placed.plan, slower)
    links = tuple(Link(link.source, link.target, 1e15, 0.0) for link in group.topology.links)
    group.topology = replace(group.topology, links=links)
    predictor = Predictor(placed, copy.deepcopy(placed.job.module), group, steps)
    for _ in range(4):
        for kept, untimed in predictor.steps().values():
            untimed()
            kept()
    return predictor, steps, group


def replayed_s(plan: Plan, group: OneProcess, op_s: float) -> float:
    plan = replace(plan, options=replace(plan.options, step="joint"))
    graph = with_measured_times(plan.graph, {"cpu-core": dict.fromkeys(plan.graph.index, op_s)})
    return replay_plan(plan, graph, group.topology).makespan_s


@needs_two_cores
def test_a_plan_lies_between_ops_alone_and_ops_side_by_side() -> None:
    job = build("branches")
    with placed_at_random(job, seed=3) as module:
        placed = PlacedJob(module, module.captured, [job])
        for slower in (1.0, 2.0):
            predictor, steps, group = predicted(placed, slower)
            found = predictor.predict(4)
            assert steps.positions == {(0,), (1,), (0, 1)}
            assert found.contention == [slower] * 4
            assert found.host_s == 0.25
            low, high = (replayed_s(module.plan, group, factor * OP_S) for factor in (1.0, 2.0))
            if slower == 1.0:
                assert found.steps_s == pytest.approx([low + 0.25] * 4)
            else:  # it overlaps for some of the time, and not for all
                assert low + 0.25 < found.step_s < high + 0.25
            assert found.plan.makespan_s + 0.25 == pytest.approx(found.step_s)


@needs_two_cores
def test_a_device_that_the_plan_leaves_alone_is_not_profiled() -> None:
    job = build("branches")
    alone = random_plan(capture(job), device_count=1)
    two = random_plan(capture(job), device_count=2)
    plan = replace(
        two, ops=tuple(replace(entry, device=two.topology.devices[1].id) for entry in alone.ops), transfers=()
    )
    with closing(apply(job, replay_plan(plan, plan.graph, plan.topology), ["cpu:0", "cpu:1"])) as module:
        placed = PlacedJob(module, module.captured, [job])
        assert used_devices(module.plan) == {two.topology.devices[1].id}
        predictor, steps, _ = predicted(placed, 5.0)
        assert list(predictor.steps()) == ["alone"]
        found = predictor.predict(4)
        assert steps.positions == {(1,)}
        assert found.step_s == pytest.approx(len(plan.ops) * OP_S + 0.25)
        assert found.one_device_s == [pytest.approx(found.step_s)] * 4
        assert found.contention == []


def test_the_network_is_no_used_device() -> None:
    plan = diamond()
    busy = sorted({entry.device for entry in plan.ops if entry.end_s > entry.start_s})
    for network in ("network", "rank0/network", "rank0/network/1"):
        renamed = {busy[0]: network, **{device: f"rank0/{device}" for device in busy[1:]}}
        ops = tuple(replace(entry, device=renamed[entry.device]) for entry in plan.ops)
        assert used_devices(replace(plan, ops=ops)) == set(renamed.values()) - {network}


@needs_two_cores
def test_steps_of_single_devices_are_placed_steps() -> None:
    job = build("convolutions")
    before = copy.deepcopy(job.module.state_dict())
    with placed_at_random(job) as module:
        profiler = PlacedProfiler(
            replace(job, module=copy.deepcopy(job.module)), module.captured, [*module.devices.values()]
        )
        for positions in ([0], [1], [1, 0]):
            samples = profiler.recorded_steps(positions)
            assert len(samples) == len(positions)
            for sample in samples:
                assert sample.op_times_s.keys() == module.plan.placement.keys()
                assert sample.wall_s > sum(sample.op_times_s.values()) > 0
        for plain in profiler.plain_steps([1, 0]):
            assert plain.host_s is not None
            assert 0 < plain.host_s < plain.wall_s
    assert all(tensor.equal(before[name]) for name, tensor in job.module.state_dict().items())


@needs_two_cores
def test_factors_of_a_run_have_ranges() -> None:
    job = build("branches")
    report = run(job, random_plan(capture(job), seed=3), ["cpu:0", "cpu:1"], steps=5, warmup=1).report
    for value, (low, high) in (
        (report.predicted_s, report.predicted_quartiles_s),
        (report.measured_s, report.measured_quartiles_s),
        (report.baseline_s, report.baseline_quartiles_s),
        (report.eager_all_cores_s, report.eager_all_cores_quartiles_s),
        (report.runtime_factor, report.runtime_factor_quartiles),
        (report.contention_factor, report.contention_factor_quartiles),
    ):
        assert 0 < low <= value <= high
    low, high = report.baseline_quartiles_s
    assert report.noise == (high - low) / report.baseline_s
    assert report.loss.ideal_s == report.baseline_s / 2
    assert report.loss.ideal_s + report.loss.total_s == pytest.approx(report.measured_s)
    assert report.conclusion.endswith(".")
    told = report.to_dict()
    assert told["loss"]["idle_s"] == report.loss.idle_s
    assert told["conclusion"] == report.conclusion
