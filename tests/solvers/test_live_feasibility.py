"""Under ``memory: live`` what cannot fit is told with its numbers, and what waits or relays can make fit is planned."""

from dataclasses import replace

import pytest
from solvers.helpers import make_graph, make_machine

from dlplacer.core.errors import InfeasibleError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.result import Result
from dlplacer.planning.place import place

LIVE = Options(contention="none")


def _place(graph: OpGraph, memory: int, count: int = 1, options: Options = LIVE) -> Result:
    return place(graph, make_machine(count, memory), options, workers=1)


def _chain() -> OpGraph:
    # a 0–1, b 1–2, c 2–3; every output of 4 bytes lives until its reader ends: 8 at most, 12 in all.
    times = {"a": 1.0, "b": 1.0, "c": 1.0}
    return make_graph(times, [("a", "b", 4), ("b", "c", 4)], output_bytes=dict.fromkeys("abc", 4))


def test_what_is_not_alive_together_need_not_fit_together() -> None:
    result = _place(_chain(), 8)
    assert (result.status, result.plan.makespan_s) == ("optimal", 3)
    assert result.plan.memory["d0"].peak_bytes == 8
    with pytest.raises(InfeasibleError, match="12 B"):
        _place(_chain(), 8, options=replace(LIVE, memory="sum"))


def test_an_op_that_does_not_fit_while_it_runs_is_named_with_its_numbers() -> None:
    words = r"op 'b' needs 8 B while it runs: .* largest device .*'d0' has 7 B; use a larger topology, a smaller batch"
    with pytest.raises(InfeasibleError, match=words):
        _place(_chain(), 7)


def test_what_stays_all_step_must_fit() -> None:
    graph = make_graph({"a": 1.0, "b": 1.0}, weight_bytes={"a": 5, "b": 5})
    with pytest.raises(InfeasibleError, match="10 B in all; the memory of 'd0' is 9 B"):
        _place(graph, 9)


def test_without_any_schedule_that_keeps_the_memory_it_says_so() -> None:
    # Both outputs are read by c and d, so both are alive when the second of a and b ends, beside its workspace.
    edges = [("a", "c", 2), ("b", "c", 2), ("a", "d", 2), ("b", "d", 2)]
    times = dict.fromkeys("abcd", 1.0)
    graph = make_graph(times, edges, output_bytes={"a": 2, "b": 2}, workspace_bytes={"a": 3, "b": 3})
    assert _place(graph, 7).plan.memory["d0"].peak_bytes == 7
    with pytest.raises(InfeasibleError, match=r"no schedule keeps the memory at all times: .* devices have 6 B"):
        _place(graph, 6)


def test_the_order_that_keeps_the_memory_is_found() -> None:
    # The outputs of p (until q ends) and x (until it is sent) do not fit on d0 together.
    graph = make_graph(
        {"p": 1.0, "q": 1.0, "x": 1.0, "y": 3.0},
        [("p", "q", 4), ("x", "y", 0)],
        output_bytes={"p": 4, "x": 4},
        devices={"p": ("d0",), "q": ("d0",), "x": ("d0",), "y": ("d1",)},
    )
    result = _place(graph, 4, 2)
    # x 0–1, then p and q beside y, 1–4.
    assert (result.status, result.plan.makespan_s) == ("optimal", 4)


def test_more_memory_never_hurts() -> None:
    graph = make_graph(
        dict.fromkeys("abcde", 2.0),
        [("a", "c", 2), ("b", "c", 2), ("a", "d", 2), ("d", "e", 2)],
        output_bytes=dict.fromkeys("abcde", 3),
    )
    spans = [_place(graph, memory, 2).plan.makespan_s for memory in (9, 10, 12, 18)]
    assert spans == sorted(spans, reverse=True)
