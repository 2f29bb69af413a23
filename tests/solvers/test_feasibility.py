"""Why a problem is infeasible: the message names object, value, limit and way out."""

import pytest
from solvers.helpers import make_graph, make_machine, make_problem, one_worker

from dlplacer.core.errors import InfeasibleError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.solvers.feasibility import require_feasible
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
        "op 'conv1' needs 12.4 GiB; the largest device 'd0' has 8 GiB; use a larger topology, a smaller batch, or "
        "split the op"
    )


def test_all_ops_larger_than_all_memory() -> None:
    graph = make_graph({"a": 1, "b": 1, "c": 1}, weight_bytes={"a": 3, "b": 3, "c": 3})
    assert _reason(graph, make_machine(2, memory=4)) == (
        "the ops that may run on any device need 9 B in all; the memory there is 8 B in all; use a larger topology, a "
        "smaller batch, or allow more devices"
    )


def test_a_group_without_a_common_device() -> None:
    graph = make_graph({"a": 1, "b": 1}, colocate={"a": "g", "b": "g"}, devices={"a": ("d0",), "b": ("d1",)})
    assert _reason(graph, make_machine(2)) == (
        "colocation group 'g' has no device that all its ops may use: op 'a' may run on 'd0'; op 'b' may run on 'd1'; "
        "change their 'devices' or take the group apart"
    )


def test_two_devices_that_must_talk_and_cannot() -> None:
    graph = make_graph({"a": 1, "b": 1}, [("a", "b", 1)], devices={"a": ("d0", "d1"), "b": ("d3",)})
    assert _reason(graph, _two_islands()) == (
        "op 'a' may run on 'd0', 'd1' and op 'b' may run on 'd3'; they must communicate, but no route joins these "
        "devices; add a link or change the ops' 'devices'"
    )


@pytest.mark.parametrize("method", ["ilp", "list", "heft"])
def test_sizes_that_cannot_be_packed(method: str) -> None:
    graph = make_graph({"a": 1, "b": 1, "c": 1}, weight_bytes={"a": 3, "b": 3, "c": 3})
    problem = make_problem(graph, make_machine(2, memory=5))
    require_feasible(problem)
    with pytest.raises(
        InfeasibleError, match="no placement of 3 ops with 9 B in all fits: the largest op 'a' needs 3 B"
    ):
        METHODS[method](problem, one_worker())
