"""What a transfer holds in ticks is no more than it holds in seconds, so that no bound is above a plan."""

from random import Random

import pytest

import dlplacer as dp
from dlplacer.planning.place import place
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.problem.route_table import build_traffic
from dlplacer.problem.routes import link_holds
from dlplacer.problem.ticks import exact

OPTIONS = dp.Options(delay="store-and-forward")


def _through_routers(seed: int) -> Problem:
    """Two pairs of devices that talk over one link between two routers; times are multiples of nothing."""
    random = Random(seed)
    devices = tuple(dp.Device(f"d{i}") for i in range(4))
    rates = [random.uniform(0.5, 2.0) for _ in range(5)]
    links = (
        *(dp.Link(f"d{i}", f"r{i // 2}", rates[i], random.choice([0.0, 0.1])) for i in range(4)),
        dp.Link("r0", "r1", rates[4]),
    )
    ops = tuple(dp.Op(f"k{i}", "op", random.uniform(0.1, 1.0), devices=(f"d{i % 4}",)) for i in range(8))
    edges = tuple(dp.Edge(f"k{i}", f"k{4 + (i + 2) % 4}", random.randint(1, 3)) for i in range(4))
    return build_problem(
        dp.OpGraph(ops, edges), dp.Topology(devices, (dp.Router("r0"), dp.Router("r1")), links), OPTIONS
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_link_is_held_for_the_whole_ticks_within(seed: int) -> None:
    problem = _through_routers(seed)
    assert not problem.exact
    seen = 0
    for request in build_traffic(problem).requests:
        routes = build_traffic(problem).routes
        for source in range(4):
            for target in range(4):
                for segment in routes.between(request.size, source, target)[0] if source != target else ():
                    size = problem.sizes_bytes[request.size]
                    spans = link_holds(problem.topology, segment.hops, size, "store-and-forward", exact)
                    assert segment.ticks == spans[-1][2] // problem.tick_s
                    for (_, offset, ticks), (_, begin_s, end_s) in zip(segment.holds, spans, strict=True):
                        assert begin_s <= offset * problem.tick_s < begin_s + problem.tick_s
                        assert end_s - problem.tick_s < (offset + ticks) * problem.tick_s <= end_s
                        seen += 1
    assert seen > 100


@pytest.mark.parametrize("seed", range(3))
def test_plans_with_rounded_ticks_are_proven(seed: int) -> None:
    problem = _through_routers(seed)
    found = place(problem.graph, problem.topology, OPTIONS, time_limit_s=20, workers=2).plan
    assert found.status == "optimal"
    assert found.lower_bound_s <= found.makespan_s <= found.lower_bound_s + found.rounding_s + 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_delays_over_relays_are_rounded_as_their_segments_are(seed: int) -> None:
    random = Random(seed)
    devices = tuple(dp.Device(f"d{i}") for i in range(4))
    links = tuple(dp.Link(f"d{i}", f"d{i + 1}", random.uniform(0.5, 2.0)) for i in range(3))
    ops = tuple(dp.Op(f"k{i}", "op", random.uniform(0.1, 1.0), devices=(f"d{i % 2 * 3}",)) for i in range(6))
    edges = tuple(dp.Edge(f"k{i}", f"k{i + 1}", random.randint(1, 3)) for i in range(5))
    graph, topology = dp.OpGraph(ops, edges), dp.Topology(devices, (), links)
    problem = build_problem(graph, topology, dp.Options())
    routes = build_traffic(problem).routes
    assert not problem.exact
    for size in range(len(problem.sizes_bytes)):
        for source, target in ((0, 3), (3, 0), (1, 3), (0, 1)):
            route = routes.quickest(size, source, target)
            assert problem.delay[size][source][target] == sum(segment.ticks for segment in route)
    # The bound adds delays, a schedule the segments of its transfers.
    assert place(graph, topology, method="heft").plan.gap < 1e-7
    assert place(graph, topology, time_limit_s=5).plan.status == "optimal"
