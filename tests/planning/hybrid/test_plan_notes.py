"""What a hybrid plan must not claim, and what it says of itself."""

from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.machines.costs.gradient_codecs import exchanges
from dlplacer.planning.hybrid.epochs import CriticalBatch, EpochsTable, StatisticalEfficiency
from dlplacer.planning.hybrid.hybrid import HybridProblem, plan_hybrid, plan_notes
from dlplacer.planning.hybrid.hybrid_plan import HybridPlan
from dlplacer.planning.hybrid.step_times import GradientLayer, OnMachine, Work
from dlplacer.planning.hybrid.worker_layout import WorkerLayout
from dlplacer.planning.hybrid.workers import SpeedupTable

WORK = Work(0.010, (GradientLayer(0.005, 8_000_000),))


def on_star(base: EpochsTable | CriticalBatch, devices: int, fat: float = 1e9, codec: str = "none") -> HybridPlan:
    """The plan for devices on a switch with links of 1 GB/s; the last device's link is of another rate."""
    rates = [1e9] * (devices - 1) + [fat]
    links = tuple(Link(f"d{at}", "switch", rate) for at, rate in enumerate(rates))
    topology = Topology(tuple(Device(f"d{at}") for at in range(devices)), (Router("switch"),), links)
    step_times = OnMachine(WorkerLayout(topology), exchanges(codecs=[codec]))
    problem = HybridProblem(WORK, StatisticalEfficiency(base), SpeedupTable({2: 1.5}), topology, step_times)
    return plan_hybrid(problem, devices)


def test_nothing_wins_where_the_epochs_of_data_parallelism_are_not_known() -> None:
    """E is known for 1 and 2 workers, four devices are asked for: 2 x 2 is the best that is known, and no winner."""
    plan = on_star(EpochsTable({1: 4.0, 2: 4.0}), 4)
    assert [each.is_compared for each in plan.budgets] == [True, True, False, False]
    at_4 = plan.at(4)
    assert at_4.best is not None
    assert at_4.hybrid is not None
    assert (at_4.against_same_devices, at_4.against_best_data_parallel) == (None, None)
    # On two devices everything is known, and the exchange hides behind nothing.
    assert plan.first_win == 2
    assert "epochs of data parallelism are not known for 3 to 4 workers" in plan_notes(plan)[0]


def test_an_assumed_factor_of_a_codec_is_named_and_a_given_one_is_not() -> None:
    base = CriticalBatch(1.0, 100.0)
    plan = on_star(base, 4, codec="ternary")
    (text,) = (each for each in plan_notes(plan, None, StatisticalEfficiency(base)) if "noise" in each)
    assert "codec 'ternary' are assumed to grow" in text
    assert not [
        each for each in plan_notes(plan, None, StatisticalEfficiency(base, {"ternary": 1.0})) if "noise" in each
    ]
