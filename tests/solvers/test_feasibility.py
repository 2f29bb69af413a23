"""Why a problem is infeasible: the message names object, value, limit and way out."""

import pytest
from solvers.helpers import make_graph, make_machine, make_problem, one_worker
from solvers.random_problems import random_everything

from dlplacer.core.errors import InfeasibleError, InputError, NoPlanError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.planning.compare import compare
from dlplacer.planning.place import place
from dlplacer.solvers.feasibility import graph_size
from dlplacer.solvers.feasibility.explanation import shortage
from dlplacer.solvers.feasibility.simple_reasons import require_feasible
from dlplacer.solvers.methods import METHODS


def _reason(graph: OpGraph, topology: Topology) -> str:
    with pytest.raises(InfeasibleError) as caught:
        require_feasible(make_problem(graph, topology))
    message = str(caught.value)
    assert "\n" not in message
    return message


def _two_islands() -> Topology:
    devices = tuple(Device(f"d{i}") for i in range(4))
    return Topology(devices, (), (Link("d0", "d1", 1.0), Link("d2", "d3", 1.0)))


def test_an_op_larger_than_every_device() -> None:
    graph = make_graph({"conv1": 1}, weight_bytes={"conv1": 13_314_398_618})
    assert _reason(graph, make_machine(2, memory=8 * 2**30)) == (
        "op 'conv1' needs 12.4 GiB; the largest device 'd0' has 8 GiB; use a larger topology or split the op"
    )


def test_an_op_larger_than_the_devices_that_it_may_use() -> None:
    graph = make_graph({"a": 1}, weight_bytes={"a": 5}, devices={"a": ("d1",)})
    topology = Topology((Device("d0", memory_bytes=9), Device("d1", memory_bytes=4)))
    assert "the largest device that it may use 'd1' has 4 B" in _reason(graph, topology)


def test_sizes_that_print_alike_are_told_apart() -> None:
    graph = make_graph({"a": 1}, weight_bytes={"a": 8 * 2**30 + 1})
    assert "needs 8589934593 bytes" in _reason(graph, make_machine(1, memory=8 * 2**30))


def test_a_group_larger_than_every_device() -> None:
    graph = make_graph({"a": 1, "b": 1}, weight_bytes={"a": 3, "b": 3}, colocate={"a": "g", "b": "g"})
    assert _reason(graph, make_machine(2, memory=5)) == (
        "colocation group 'g' of 2 ops needs 6 B; the largest device 'd0' has 5 B; use a larger topology or take the "
        "group apart"
    )


def test_all_ops_larger_than_all_memory() -> None:
    graph = make_graph({"a": 1, "b": 1, "c": 1}, weight_bytes={"a": 3, "b": 3, "c": 3})
    assert _reason(graph, make_machine(2, memory=4)) == (
        "the ops need 9 B in all; the memory of 'd0', 'd1' is 8 B in all; use a larger topology or a smaller batch"
    )


def test_a_group_without_a_common_device() -> None:
    graph = make_graph({"a": 1, "b": 1}, colocate={"a": "g", "b": "g"}, devices={"a": ("d0",), "b": ("d1",)})
    assert _reason(graph, make_machine(2)) == (
        "colocation group 'g' has no device that all its ops may use: 'a' may run on 'd0'; 'b' may run on 'd1'; change "
        "their 'devices' or take the group apart"
    )


def test_two_devices_that_must_talk_and_cannot() -> None:
    graph = make_graph({"a": 1, "b": 1}, [("a", "b", 1)], devices={"a": ("d0", "d1"), "b": ("d3",)})
    assert _reason(graph, _two_islands()) == (
        "op 'a' may run on 'd0', 'd1' and op 'b' on 'd3'; they must talk, but no route of links joins these devices; "
        "add a link or change the ops' 'devices'"
    )


def test_devices_that_must_talk_through_other_ops() -> None:
    graph = make_graph({"a": 1, "x": 1, "b": 1}, [("a", "x", 1), ("b", "x", 1)], devices={"a": ("d0",), "b": ("d3",)})
    message = _reason(graph, _two_islands())
    assert "op 'a' may run on 'd0' and op 'b' on 'd3'; they must talk through the graph" in message


def test_a_connected_graph_larger_than_every_island() -> None:
    devices = tuple(Device(f"d{i}", memory_bytes=4) for i in range(3))
    graph = make_graph({"a": 1, "b": 1, "c": 1}, [("a", "b", 1), ("b", "c", 1)], weight_bytes={"a": 3, "b": 3, "c": 3})
    message = _reason(graph, Topology(devices, (), (Link("d0", "d1", 1.0),)))
    assert message.startswith("the ops need 9 B in all; the memory of 'd0', 'd1' is 8 B in all")


def test_separate_graphs_may_use_separate_islands() -> None:
    graph = make_graph({"a": 1, "b": 1}, devices={"a": ("d0",), "b": ("d3",)})
    require_feasible(make_problem(graph, _two_islands()))


@pytest.mark.parametrize("method", ["ilp", "list", "heft"])
def test_sizes_that_cannot_be_packed(method: str) -> None:
    graph = make_graph({"a": 1, "b": 1, "c": 1}, weight_bytes={"a": 3, "b": 3, "c": 3})
    problem = make_problem(graph, make_machine(2, memory=5))
    require_feasible(problem)
    with pytest.raises(
        InfeasibleError, match="no placement of 3 ops with 9 B in all fits: the largest op 'a' needs 3 B"
    ):
        METHODS[method](problem, one_worker())


def test_the_type_whose_memory_is_short_is_named() -> None:
    devices = tuple(
        Device(f"d{i}", kind, memory_bytes=room) for i, (kind, room) in enumerate([("a", 5)] * 2 + [("b", 50)])
    )
    topology = Topology(devices, (), (Link("d0", "d1", 1.0), Link("d1", "d2", 1.0)))
    weights = dict.fromkeys("wxyz", 3)
    pinned = make_graph(dict.fromkeys("wxyz", 1), weight_bytes=weights, devices=dict.fromkeys("wxy", ("a",)))
    reason = r"the devices have 2 × 5 B \(type 'a'\), 50 B \(type 'b'\); the memory of type 'a' is too small for"
    with pytest.raises(InfeasibleError, match=reason):
        METHODS["ilp"](make_problem(pinned, topology), one_worker())
    pinned = make_graph(dict.fromkeys("wxyz", 1), weight_bytes=weights, devices=dict.fromkeys("wxyz", ("a",)))
    message = _reason(pinned, topology)
    assert message.startswith(
        "the ops that may only run on devices of type 'a' need 12 B in all; the memory there is 10"
    )


def test_pins_are_blamed_beside_memory() -> None:
    graph = make_graph({"a": 1, "b": 1}, weight_bytes={"a": 3, "b": 3}, devices={"a": ("d0",), "b": ("d0",)})
    problem = make_problem(graph, make_machine(2, memory=5))
    with pytest.raises(InfeasibleError, match=r"no placement of 2 ops.*; or: every placement breaks the 'devices'"):
        METHODS["ilp"](problem, one_worker())


def test_what_is_nearest_to_being_short_where_no_plan_is_found() -> None:
    devices = (Device("d0", "fast", memory_bytes=10), Device("d1", "slow", memory_bytes=30))
    topology = Topology(devices, (), (Link("d0", "d1", 1.0),))
    weights = {"a": 4, "b": 5, "c": 6}
    anywhere = make_graph(dict.fromkeys("abc", 1), weight_bytes=weights)
    pinned = make_graph(dict.fromkeys("abc", 1), weight_bytes=weights, devices={"a": ("fast",), "b": ("fast",)})
    whole = "footprints take 15 B of the 40 B that devices have in all"
    assert shortage(make_problem(anywhere, topology)) == whole
    assert shortage(make_problem(pinned, topology)) == (
        "footprints take 9 B of the 10 B that devices of type 'fast' have in all"
    )
    assert shortage(make_problem(anywhere, make_machine(2, memory=15))) is None


def test_a_method_that_fails_tells_what_is_short_and_names_the_method_that_finds_more() -> None:
    graph, topology, options = random_everything(101)
    with pytest.raises(NoPlanError, match=r"weights, gradients and state take .* of type 'gpu' have in all; op 'k5'"):
        place(graph, topology, options, method="heft", time_limit_s=5, workers=1)
    with pytest.raises(NoPlanError, match=r"one may exist: use method 'ilp', raise --time-limit"):
        place(graph, topology, options, method="heft", time_limit_s=5, workers=1)


def test_a_graph_that_is_too_large_is_refused_with_its_size_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = make_graph({"a": 1, "b": 1, "c": 1}, [("a", "b", 8), ("b", "c", 8)]), make_machine(2)
    monkeypatch.setattr(graph_size, "MOST_OPS", 2)
    for refuse in (place, compare):
        with pytest.raises(InputError) as caught:
            refuse(graph, machine)
        assert str(caught.value) == (
            "the graph has 3 ops and 2 edges; at most 2 ops are planned, and these would need about 20 KiB and 750 us "
            "before the first plan; make it coarser: --granularity fused joins chains of ops, --granularity module "
            "makes one op of each module"
        )
    monkeypatch.setattr(graph_size, "MOST_OPS", 3)
    assert place(graph, machine, time_limit_s=10).plan.status == "optimal"


@pytest.mark.slow
def test_a_million_ops_are_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = tuple(Op(f"o{number}", "test", 1e-5) for number in range(10**6))
    graph = OpGraph(ops, tuple(Edge(f"o{number}", f"o{number + 1}", 8) for number in range(10**6 - 1)))
    # Nothing that takes time for each op may run first.
    for name in ("constrained", "build_problem", "with_times"):
        monkeypatch.setattr(f"dlplacer.planning.place.{name}", None)
    with pytest.raises(InputError, match=r"1,000,000 ops and 999,999 edges; .* 7\.629 GiB and 300 s before"):
        place(graph, make_machine(8), time_limit_s=10)
