"""Programs: how orders are lowered to them, and what the dry run finds in broken ones."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.random_graphs import random_graph, random_order

from dlplacer.core.errors import InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.runtime.program.checks import races
from dlplacer.runtime.program.program import Action, Compute, Free, Program, Recv, Send, lower, lower_stages


@given(st.integers(0, 10**6), st.booleans())
@settings(derandomize=True, deadline=None, max_examples=200)
def test_valid_orders_run_dry_and_free_everything_in_one_stage_or_two(seed: int, staged: bool) -> None:
    graph = random_graph(seed)
    order = random_order(graph, seed + 1)
    stages = [
        {device: [op for op in ops if graph.op(op).phase == phase] for device, ops in order.items()}
        for phase in ("forward", "backward")
    ]
    programs = lower_stages(graph, stages) if staged else [lower(graph, order)]
    races(graph, programs)
    for device in order:
        assert tensors_left(graph, [entry for program in programs for entry in program.actions[device]]) == set()


@given(st.integers(0, 10**6))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_a_tensor_goes_to_a_device_once(seed: int) -> None:
    graph = random_graph(seed)
    order = random_order(graph, seed + 1)
    home = {op: device for device, ops in order.items() for op in ops}
    sent = [
        (entry.tensor, entry.target)
        for entries in lower(graph, order).actions.values()
        for entry in entries
        if isinstance(entry, Send)
    ]
    crossing = {(edge.tensor, home[edge.target]) for edge in graph.edges if home[edge.source] != home[edge.target]}
    assert sorted(sent) == sorted(crossing)


@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_a_program_without_one_of_its_actions_is_found_out(seed: int, chooser: object) -> None:
    graph = random_graph(seed)
    program = lower(graph, random_order(graph, seed + 1))
    needed = [
        (device, position)
        for device, entries in program.actions.items()
        for position, entry in enumerate(entries)
        if not isinstance(entry, Free)
    ]
    device, position = chooser.choice(needed)  # type: ignore[attr-defined]
    entries = program.actions[device]
    broken = Program({**program.actions, device: (*entries[:position], *entries[position + 1 :])})
    with pytest.raises(InternalError):
        races(graph, [broken])


def test_a_tensor_that_is_sent_and_never_received_is_found_out() -> None:
    pair = OpGraph((Op("a", "test"), Op("b", "test")), (Edge("a", "b", 8, 0, "x"),))
    program = lower(pair, {"here": ["a", "b"], "there": []})
    compute, *others = program.actions["here"]
    races(pair, [program])
    with pytest.raises(InternalError):
        races(pair, [Program({"here": (compute, Send("x", "there"), *others), "there": ()})])


# a → b → c → d, every second op on the other device, where d is to run before b.
def test_an_order_that_deadlocks_is_found_out() -> None:
    chain = OpGraph(
        tuple(Op(name, "test") for name in "abcd"), (Edge("a", "b", 1), Edge("b", "c", 1), Edge("c", "d", 1))
    )
    races(chain, [lower(chain, {"here": ["a", "c"], "there": ["b", "d"]})])
    with pytest.raises(
        InternalError, match=r"would hang: here waits at RECV b:0->c <- there \(line 5\); there waits at RECV c:0->d"
    ):
        races(chain, [lower(chain, {"here": ["a", "c"], "there": ["d", "b"]})])


def tensors_left(graph: OpGraph, entries: Sequence[Action]) -> set[str]:
    """What a device still holds after its actions."""
    held: set[str] = set()
    for entry in entries:
        if isinstance(entry, Compute):
            held.update(edge.tensor for edge in graph.edges_from[entry.op])
        elif isinstance(entry, Recv):
            held.add(entry.tensor)
        elif isinstance(entry, Free):
            held.remove(entry.tensor)
    return held
