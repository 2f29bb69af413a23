"""Parameter servers as a transport of the planner."""

import pytest
from machines.costs.closed_forms import parameter_server

from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.costs.gradient_codecs import exchanges
from dlplacer.planning.hybrid.epochs import EpochsTable, StatisticalEfficiency
from dlplacer.planning.hybrid.hybrid import HybridProblem, plan_hybrid
from dlplacer.planning.hybrid.step_times import GradientLayer, OnMachine, StepTime, Team, Work
from dlplacer.planning.hybrid.worker_layout import WorkerLayout
from dlplacer.planning.hybrid.workers import ALONE, SpeedupTable, WorkerSplit

WORK = Work(0.010, (GradientLayer(0.005, 8_000_000),))
SERVED = tuple(exchange for exchange in exchanges() if exchange.name == "none/servers")


def star(count: int, fat: float = 1e9, latency_s: float = 0.0) -> Topology:
    """Devices d0 … on a switch by links of 1 GB/s; the last has a link of another rate."""
    rates = [1e9] * (count - 1) + [fat]
    links = tuple(Link(f"d{at}", "switch", rate, latency_s / 2) for at, rate in enumerate(rates))
    return Topology(tuple(Device(f"d{at}") for at in range(count)), (Router("switch"),), links, name="star")


def served(topology: Topology, devices: int, degree: int = 1, split: WorkerSplit = ALONE) -> list[StepTime]:
    on_machine = OnMachine(WorkerLayout(topology), SERVED, overlap=False)
    return list(on_machine.step_times(WORK, Team(devices, degree, split), (1,)))


def test_servers_on_a_switch_take_what_the_closed_form_says() -> None:
    channel = AlphaBeta(1e-4, 1e-9)
    for devices in range(2, 9):
        for step in served(star(devices, latency_s=1e-4), devices):
            wanted = parameter_server(channel, devices - step.servers, step.servers)
            assert step.exposed_s == pytest.approx(wanted.time_s(WORK.gradient_bytes))


def test_servers_use_devices_with_which_no_more_workers_converge() -> None:
    """Nothing converges beyond 4 workers, and nothing but servers is allowed; there are five devices.

    Messages of one server follow each other. Four workers and one server: 2 × 4 × 8 MB ÷ 1 GB/s = 64 ms; three workers
    and two servers, which share every message out: 2 × 3 × 4 MB ÷ 1 GB/s = 24 ms.
    """
    topology = star(5, fat=100e9)
    assert {step.servers: round(step.exposed_s, 9) for step in served(topology, 5)} == {1: 0.064, 2: 0.024}
    efficiency = StatisticalEfficiency(EpochsTable({1: 4.0, 4: 4.0}))
    problem = HybridProblem(WORK, efficiency, SpeedupTable({}), topology, OnMachine(WorkerLayout(topology), SERVED))
    plan = plan_hybrid(problem, 5)
    best = plan.at(5).data_parallel
    assert best is not None
    assert (best.workers, best.step.servers, best.label) == (3, 2, "3 x 1, none/servers, 2 servers")
    assert best.to_dict(plan.reference_s, None)["servers"] == 2
    # the exchange hides behind nothing: all gradients are ready at the end of the backward pass
    assert plan.speedup(best) == pytest.approx(3 * 0.010 / 0.034)
