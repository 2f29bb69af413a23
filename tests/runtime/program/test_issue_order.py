"""The order in which actions are issued: every device's own order, sends first, by planned start; ops in runs."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.random_graphs import DEVICES, random_graph, random_order

from dlplacer.runtime.program.program import Compute, Free, Recv, Send, issue_order, lower


@given(seed=st.integers(0, 10**6), longest=st.integers(1, 9))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_every_action_is_issued_once_in_the_order_of_its_device(seed: int, longest: int) -> None:
    chooser = random.Random(seed)
    graph = random_graph(seed)
    program = lower(graph, random_order(graph, seed))
    kinds = {op.id: chooser.choice([None, 1, 2]) for op in graph.ops}
    issued = list(issue_order(program, kinds.__getitem__, longest, {}))
    for device in DEVICES:
        own = [action for name, part in issued if name == device for action in part]
        assert tuple(own) == program.actions.get(device, ())
    sent: set[tuple[str, str, str]] = set()
    for name, part in issued:
        first = part[0]
        if isinstance(first, Send):
            sent.add((first.tensor, name, first.target))
        elif isinstance(first, Recv):
            assert (first.tensor, first.source, name) in sent
        if len(part) > 1:
            assert all(isinstance(action, (Compute, Free)) for action in part)
        ops = [action.op for action in part if isinstance(action, Compute)]
        assert len({kinds[op] for op in ops}) <= 1
        assert len(ops) <= (longest if ops and kinds[ops[0]] else 1)


# Where the order of every device follows the planned starts, so does the order of all.
def test_devices_are_issued_by_planned_start() -> None:
    graph = random_graph(3)
    position = {op: float(number) for number, op in enumerate(graph.topological_order)}
    order = {device: sorted(ops, key=position.__getitem__) for device, ops in random_order(graph, 3).items()}
    parts = issue_order(lower(graph, order), lambda op: None, 1, position)
    issued = [action.op for _, part in parts for action in part if isinstance(action, Compute)]
    assert issued == sorted(position, key=position.__getitem__)
