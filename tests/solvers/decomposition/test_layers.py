"""Equal layers one after another: solved once, and put together so that each begins where the last one ended."""

from itertools import combinations

import pytest
from solvers.helpers import broken_rules, broken_transfers, make_graph, one_worker

import dlplacer.solvers.decomposition.low_traffic as low_traffic_module
import dlplacer.solvers.decomposition.series as series_module
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.bounds.bounds import lower_bounds
from dlplacer.solvers.decomposition.low_traffic import _LowTraffic, low_traffic
from dlplacer.solvers.decomposition.segments import find_segments
from dlplacer.solvers.decomposition.series import SegmentChain
from dlplacer.solvers.instance.instance import Instance, build_instance


@pytest.fixture(autouse=True)
def _short_annealing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_traffic_module, "_AGAIN_S", 0.05)


def _layers(count: int) -> Instance:
    """Layers of two branches on a machine of which no two devices can be swapped."""
    times: dict[str, float] = {"j0": 1}
    edges = []
    for layer in range(count):
        joint, left, right, after = f"j{layer}", f"a{layer}", f"b{layer}", f"j{layer + 1}"
        times |= {left: 8, right: 9, after: 1}
        edges += [(joint, left, 2), (joint, right, 2), (left, after, 2), (right, after, 2)]
    devices = tuple(Device(f"d{number}") for number in range(3))
    links = (Link("d0", "d1", 1), Link("d1", "d2", 2), Link("d0", "d2", 0.5))
    return build_instance(build_problem(make_graph(times, edges), Topology(devices, (), links), Options()))


def _attention(count: int) -> Instance:
    """Layers of attention: a norm of 5, read by q, k and v of eight heads, all ops of 10; then the output.

    The norm's tensor takes 20 over the double links of four V100s in a DGX-1 and 40 over the single ones.
    """
    times, edges = {"norm0": 5.0}, []
    for layer in range(count):
        norm, after = f"norm{layer}", f"norm{layer + 1}"
        times |= {after: 5.0}
        for head in range(8):
            q, k, v, scores, result = (f"{part}{layer}.{head}" for part in ("q", "k", "v", "scores", "result"))
            times |= dict.fromkeys((q, k, v, scores, result), 10.0)
            edges += [Edge(norm, op, 40, tensor=norm) for op in (q, k, v)]
            edges += [Edge(q, scores, 5), Edge(k, scores, 5), Edge(scores, result, 10), Edge(v, result, 5)]
            edges += [Edge(result, after, 5)]
    devices = tuple(Device(f"d{number}") for number in range(4))
    double = {("d0", "d1"), ("d1", "d3"), ("d2", "d3")}
    links = tuple(Link(*pair, 2 if pair in double else 1) for pair in combinations([d.id for d in devices], 2))
    graph = OpGraph(tuple(Op(name, "test", time_s=time_s) for name, time_s in times.items()), tuple(edges))
    return build_instance(build_problem(graph, Topology(devices, (), links), Options()))


def test_a_layer_of_attention_is_bounded_as_list_rules_place_it() -> None:
    instance = _attention(20)
    chain = _chain(instance)
    layer = chain.incumbents[chain.series[5].instance]
    # Within 127.5 the norm's device runs it and 12 ops, and sends for 2.5 if the next norm is elsewhere. Others begin
    # at 25: where that norm is they run 10 ops, on two devices 9. A tick is 2.5. By work alone a layer takes 101.25.
    assert layer.best is not None
    assert layer.bound == layer.best.makespan == 51


def _chain(instance: Instance) -> SegmentChain:
    last = max(range(instance.op_count), key=lower_bounds(instance).head.__getitem__)
    chain = SegmentChain.of(instance, find_segments(instance, last), one_worker()).with_traffic()
    chain.budget = one_worker()
    return chain


@pytest.mark.parametrize("is_large", [False, True])
def test_each_layer_begins_where_the_last_one_ended(is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_large:
        monkeypatch.setattr(series_module, "_LISTED_UP_TO", 10)
    instance = _layers(20)
    chain = _chain(instance)
    assert chain.repeats or not chain.open
    found = low_traffic(chain, 0.0, 0.12, 0, {})
    assert len(found) == (1 if is_large else 3)
    for schedule in found:
        assert not broken_rules(instance, schedule)
        assert not broken_transfers(instance, schedule)
    # d1 and d2 share the quickest link: j 1, 1 there, b 9 or 1 there and back beside a 8, 11 in all; 20 layers of that,
    # the last j, and a tick where the first layer ends elsewhere.
    assert min(schedule.makespan for schedule in found) <= 20 * 11 + 2


@pytest.mark.parametrize("end", [None, 2])
def test_what_is_decided_of_a_layer_is_kept(end: int | None) -> None:
    chain = _chain(_layers(20))
    layer = chain.series[5].instance
    best, traffic = chain.incumbents[layer].best, chain.instance.traffic
    assert best is not None
    assert traffic is not None
    decided = {layer.block[0]: 0} | ({} if end is None else {layer.block[-1]: end})
    found = _LowTraffic(chain, traffic, 0, {})._closed(layer, decided, best)
    assert found.device[0] == 0
    assert found.device[-1] in ((0, 1, 2) if end is None else (end,))
    assert not broken_rules(layer, found)
