"""Workers on real machines: which devices they get, what they cost, and how links decide strategies."""

from itertools import combinations

import pytest

from dlplacer.core.topology import Device, Link, Topology
from dlplacer.files.load import load_topology
from dlplacer.machines.costs.gradient_codecs import exchanges
from dlplacer.planning.hybrid.epochs import EpochsTable, StatisticalEfficiency
from dlplacer.planning.hybrid.hybrid import HybridProblem, plan_hybrid
from dlplacer.planning.hybrid.step_times import GradientLayer, OnMachine, StepTime, Team, Work, lines_among
from dlplacer.planning.hybrid.worker_layout import WorkerLayout, partitions
from dlplacer.planning.hybrid.workers import ALONE, SpeedupTable, WorkerSplit

LAYERS = tuple(GradientLayer(0.001, size) for size in (4_000_000, 1000, 8_000_000, 1000, 2_000_000, 500_000))
WORK = Work(0.010, LAYERS)


def mesh(rates: dict[tuple[str, str], float]) -> Topology:
    names = sorted({name for pair in rates for name in pair})
    links = tuple(Link(a, b, rate) for (a, b), rate in rates.items())
    return Topology(tuple(Device(name) for name in names), (), links, name="mesh")


def steps(
    topology: Topology, devices: int, degree: int = 1, split: WorkerSplit = ALONE, **options: object
) -> list[StepTime]:
    on_machine = OnMachine(WorkerLayout(topology), **options)  # type: ignore[arg-type]
    return list(on_machine.step_times(WORK, Team(devices, degree, split), (1, 4)))


def every_step(found: list[StepTime]) -> list[StepTime]:
    return [step for step in found if step.period == 1]


def test_workers_get_the_devices_that_are_joined_best() -> None:
    fast, slow = 10.0, 1.0
    pairs = {("a", "c"): fast, ("b", "d"): fast, ("a", "b"): slow, ("a", "d"): slow, ("c", "b"): slow, ("c", "d"): slow}
    layout = WorkerLayout(mesh(pairs))
    assert layout.workers(4, 2) == (("a", "c"), ("b", "d"))
    assert layout.workers(2, 2) == (("a", "c"),)
    assert layout.workers(2, 1) == (("a",), ("c",))


def test_the_worst_worker_is_as_good_as_it_can_be() -> None:
    topology = load_topology("dgx1-v100-8gpu")
    layout = WorkerLayout(topology)

    def narrowest(workers: tuple[tuple[str, ...], ...]) -> float:
        return min(1 / layout.wiring.channel(a, b).s_per_byte for worker in workers for a, b in combinations(worker, 2))

    for devices, degree in ((8, 2), (6, 2), (8, 4), (6, 3)):
        best = max(
            narrowest(workers)
            for chosen in combinations(topology.device_index, devices)
            for workers in partitions(chosen, degree)
        )
        assert narrowest(layout.workers(devices, degree)) == best


def test_the_step_by_hand() -> None:
    # two devices, 1 GB/s, no latency: 14.502 MB both ways: 2 · 1/2 · 14.502e6 / 1e9 = 14.502 ms behind 10 ms of compute
    topology = mesh({("a", "b"): 1e9})
    (alone,) = every_step(steps(topology, 2, gradient_exchanges=exchanges()[:1], overlap=False))
    assert alone.step_s == pytest.approx(0.010 + 0.014502)
    (hidden,) = every_step(steps(topology, 2, gradient_exchanges=exchanges()[:1]))
    # the first gradients are ready after 4 ms of forward and 1 ms of backward; from then on the link never rests
    assert hidden.step_s == pytest.approx(0.005 + 0.014502)
    (fourth,) = [step for step in steps(topology, 2, gradient_exchanges=exchanges()[:1]) if step.period == 4]
    assert fourth.step_s == pytest.approx(0.010 + 0.014502 / 4)


def test_the_devices_of_workers_exchange_their_shares_side_by_side() -> None:
    # two workers of two devices, all pairs 1 GB/s: each device exchanges half of the gradients over a link of its own
    topology = mesh(dict.fromkeys(combinations("abcd", 2), 1000000000.0))
    gradient_exchanges = exchanges()[:1]
    even = every_step(steps(topology, 4, 2, WorkerSplit(1.0), gradient_exchanges=gradient_exchanges, overlap=False))[0]
    assert even.exposed_s == pytest.approx(0.014502 / 2)
    skewed = every_step(
        steps(topology, 4, 2, WorkerSplit(1.0, shares=(0.9, 0.1)), gradient_exchanges=gradient_exchanges, overlap=False)
    )[0]
    assert skewed.exposed_s == pytest.approx(0.014502 * 0.9)


def test_the_planner_weighs_codecs_and_periods_by_what_they_cost_in_epochs() -> None:
    topology = mesh({("a", "b"): 1e8})
    table = EpochsTable({1: 4.0, 2: 4.0})

    def best(**factors: dict[object, float]) -> tuple[str, int]:
        efficiency = StatisticalEfficiency(table, **factors)  # type: ignore[arg-type]
        found = plan_hybrid(HybridProblem(WORK, efficiency, SpeedupTable({}), topology), 2).at(2).data_parallel
        assert found is not None
        return found.step.codec, found.step.period

    # 14.5 MB over 100 MB/s: far longer than the step, so that fewer bytes are worth nearly twice the epochs
    assert best() == ("ternary", 1)
    assert best(codec_factors={"ternary": 9.0}) == ("fp16", 1)
    assert best(codec_factors={"ternary": 9.0}, period_factors={64: 1.1}) == ("fp16", 64)
    assert best(codec_factors={"ternary": 19.0, "fp16": 19.0}, period_factors={64: 19.0}) == ("none", 1)


def test_elastic_averaging_adds_what_a_step_does_not_hide() -> None:
    # 14.502 MB both ways over 1 GB/s take 14.502 ms, 10 ms of which are computation; over 2 GB/s nothing is left.
    for rate, exposed_s in ((1e9, 0.004502), (2e9, 0.0)):
        layout, team = WorkerLayout(mesh({("a", "b"): rate})), Team(2, 1, ALONE)
        found = OnMachine(layout, exchanges(codecs=["none", "ternary"])).step_times(WORK, team, (1,), (1, 4))
        elastic = {step.period: step for step in found if step.elastic}
        assert {period: step.exposed_s for period, step in elastic.items()} == pytest.approx(
            {1: exposed_s, 4: exposed_s / 4}
        )
    efficiency = StatisticalEfficiency(EpochsTable({1: 4.0, 2: 4.0}), {"ternary": 9.0}, elastic_factors={4: 1.5})
    problem = HybridProblem(WORK, efficiency, SpeedupTable({}), mesh({("a", "b"): 1e8}))
    best = plan_hybrid(problem, 2).at(2).data_parallel
    assert best is not None
    assert (best.label, best.epochs) == ("2 x 1, elastic, every 4 steps", 6.0)


def test_micro_batches_have_their_gradients_in_the_last_pass_alone() -> None:
    """Four micro-batches at twice the speed: gradients are complete in the last eighth of the backward pass.

    Simulated pass by pass: 2 s forward, then four backward passes of 1 s with 0.25, 0.5 and 0.25 s for the layers; of
    the last one the layers' gradients of 4, 2 and 1 GB travel at 2 GB/s as they get ready, over one channel.
    """
    layers = (GradientLayer(2.0, 4 * 10**9), GradientLayer(4.0, 2 * 10**9), GradientLayer(2.0, 10**9))
    work = Work(14.0, layers, tail_s=1.0, update_s=1.0)
    topology = Topology(tuple(map(Device, "abcd")), (), (Link("a", "c", 1e9), Link("b", "d", 1e9), Link("a", "b", 1e9)))
    step_times = OnMachine(WorkerLayout(topology), exchanges(codecs=["none"]))
    for micro_batches in (1, 2, 4):
        split = WorkerSplit(2.0, "pipeline", micro_batches, (0.5, 0.5))
        team = Team(4, 2, split)
        (step,) = [each for each in step_times.step_times(work, team, (1,)) if each.algorithm == "ring"]
        found = lines_among(step_times._costs(team), step_times.gradient_exchanges[0])
        (line,) = [line for algorithm, line in found if algorithm == "ring"]
        now_s = work.forward_s / 2
        for _ in range(micro_batches - 1):
            now_s += (work.backward_s + work.tail_s) / 2 / micro_batches
        sent_s = 0.0
        for layer in layers:
            now_s += layer.backward_s / 2 / micro_batches
            sent_s = max(sent_s, now_s) + line.time_s(layer.gradient_bytes)
        now_s += work.tail_s / 2 / micro_batches
        assert step.step_s == pytest.approx(max(now_s, sent_s) + work.update_s / 2)
