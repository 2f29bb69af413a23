"""Parameter servers as a transport of the planner."""

from itertools import combinations

import pytest
from machines.costs.closed_forms import parameter_server

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Link, Router, Topology
from dlplacer.files.load import load_topology
from dlplacer.machines.costs.alpha_beta import AlphaBeta
from dlplacer.machines.costs.collectives import Round, push_rounds
from dlplacer.machines.costs.collectives_on_links import MachineCosts
from dlplacer.machines.costs.gradient_exchange import GradientExchange, exchanges
from dlplacer.machines.costs.message_routes import Wiring
from dlplacer.planning.hybrid.communication.exchange_choices import choices_among
from dlplacer.planning.hybrid.communication.step_times import StepTime, Team
from dlplacer.planning.hybrid.communication.steps_on_links import OnMachine
from dlplacer.planning.hybrid.communication.worker_layout import WorkerLayout
from dlplacer.planning.hybrid.epochs.epochs import EpochsTable, StatisticalEfficiency
from dlplacer.planning.hybrid.hybrid import HybridProblem, plan_hybrid
from dlplacer.planning.hybrid.placed_workers import ALONE, SpeedupTable, WorkerSplit
from dlplacer.planning.hybrid.step_workload import GradientLayer, Work

WORK = Work(0.010, (GradientLayer(0.005, 8_000_000),))
SERVED = tuple(exchange for exchange in exchanges() if exchange.name == "none/servers")
PEERS = tuple(exchange for exchange in exchanges() if not exchange.is_served)


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


def test_how_many_serve() -> None:
    assert [step.servers for step in served(star(8), 8)] == [1, 2, 4]
    assert [step.servers for step in served(star(3), 3)] == [1]
    assert served(star(2), 2) == []  # one worker and a server exchange nothing
    assert [step.servers for step in served(star(8), 8, 2, WorkerSplit(1.5))] == [2, 4]


@pytest.mark.parametrize("name", ["pcie-4gpu", "dgx1-v100-8gpu", "mixed-2gpu"])
def test_a_pull_takes_as_long_as_the_push(name: str) -> None:
    topology = load_topology(name)
    devices = list(topology.device_index)
    costs = MachineCosts(Wiring(topology), (tuple(devices),))
    for workers in range(1, len(devices)):
        push = push_rounds(workers, len(devices) - workers)
        pull = [Round(tuple((b, a, share) for a, b, share in once.steps), once.times) for once in push]
        there, back = costs.rounds(push), costs.rounds(pull)
        assert (back.latency_s, back.s_per_byte) == pytest.approx((there.latency_s, there.s_per_byte))
        among = MachineCosts(costs.wiring, (tuple(devices[:workers]),))
        for line in among.served(devices[workers:]).values():
            assert (line.latency_s, line.s_per_byte) == pytest.approx((there.latency_s, there.s_per_byte))


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


def test_the_device_with_the_widest_link_serves() -> None:
    """One of four devices has a link of 1.5 GB/s, the others of 1 GB/s."""
    links = tuple(Link(f"d{at}", "hub", 1.5e9 if at == 3 else 1e9, 0.0, "half") for at in range(4))
    topology = Topology(tuple(Device(f"d{at}") for at in range(4)), (Router("hub"),), links)
    (step, _) = served(topology, 4)
    # rounds of one message: each is as slow as the worker's link, 3 × 8 MB ÷ 1 GB/s per direction
    assert (step.servers, step.exposed_s) == (1, pytest.approx(0.048))
    layout = WorkerLayout(topology)
    assert OnMachine(layout)._by_width(layout.workers(4, 1))[0] == ("d3",)


def test_all_devices_of_a_worker_push_to_the_same_servers() -> None:
    """Two workers of two devices hold 3/4 and 1/4: a server's link receives 2 × (3/4 + 1/4) of 8 MB."""
    (step,) = [step for step in served(star(6), 6, 2, WorkerSplit(1.0, shares=(0.75, 0.25))) if step.servers == 2]
    # two servers hold half each: 2 workers × 8 MB ÷ 2 = 8 ms per direction
    assert step.exposed_s == pytest.approx(0.016)


def test_servers_are_devices_of_their_own() -> None:
    costs = MachineCosts(Wiring(star(3)), (("d0", "d1"),))
    with pytest.raises(InputError, match="device 'd1' is both worker and parameter server"):
        costs.served(["d1"])
    with pytest.raises(InputError, match="must be at least 1"):
        costs.served([])


@pytest.mark.parametrize("exchange", PEERS, ids=lambda exchange: exchange.name)
@pytest.mark.parametrize("name", ["pcie-4gpu", "dgx1-v100-8gpu"])
def test_every_size_finds_its_best_algorithms(name: str, exchange: GradientExchange) -> None:
    """For no size is any choice of all-reduce and all-gather below the lines that are looked at."""
    topology = load_topology(name)
    costs = MachineCosts(Wiring(topology), (tuple(topology.device_index),))
    kept = choices_among(costs, exchange)
    assert len({(each.line.latency_s, each.line.s_per_byte) for each in kept}) == len(kept)
    for one, other in combinations(kept, 2):
        assert (one.line.latency_s < other.line.latency_s) != (one.line.s_per_byte < other.line.s_per_byte)
    for size_bytes in (1e2, 1e4, 1e6, 1e8):
        plain = exchange.line(costs.collectives(size_bytes), costs.devices).time_s(size_bytes)
        assert min(each.line.time_s(size_bytes) for each in kept) <= plain * (1 + 1e-12)
