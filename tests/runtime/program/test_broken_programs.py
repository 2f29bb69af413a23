"""Programs that were damaged at random: each is refused before it starts, or runs to its end with the right values."""

import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.random_graphs import DEVICES, random_graph, random_order

from dlplacer.core.errors import InternalError
from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor.backends import Eager
from dlplacer.runtime.executor.executor import Executor
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.executor.run import StepInputs
from dlplacer.runtime.program.actions import Action, Compute, Free, Recv, Send
from dlplacer.runtime.program.dry_run import dry_run
from dlplacer.runtime.program.lower import lower
from dlplacer.runtime.program.program import Program


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, RuntimeDevice]]:
    """Three devices, on one core: their threads take turns as they like."""
    opened: dict[str, RuntimeDevice] = {name: CpuDevice(0) for name in DEVICES}
    yield opened
    for device in opened.values():
        device.close()


def total(*values: torch.Tensor) -> torch.Tensor:
    """What every op computes: 1 + the sum of all that it reads."""
    return torch.ones(()) + sum(values)


def executable_of(graph: OpGraph) -> Executable:
    """Ops that read all their tensors and make all that is read of them."""
    codes = {}
    for name in graph.topological_order:
        reads = tuple(dict.fromkeys(edge.tensor for edge in graph.edges_into[name]))
        made = dict.fromkeys(edge.tensor for edge in graph.edges_from[name])
        calls = tuple(Instruction(tensor, total, tuple(map(Value, reads)), {}) for tensor in made)
        codes[name] = OpCode(name, "call", reads, instructions=calls)
    return Executable(codes, (), None, False)


def expected_values(graph: OpGraph) -> dict[str, float]:
    values: dict[str, float] = {}
    for name in graph.topological_order:
        value = 1.0 + sum(values[tensor] for tensor in {edge.tensor for edge in graph.edges_into[name]})
        values.update((edge.tensor, value) for edge in graph.edges_from[name])
    return values


def damaged(program: Program, chooser: random.Random) -> Program:
    """The program with one to three of its actions dropped, doubled, swapped, moved or changed."""
    lists: dict[str, list[Action]] = {device: list(entries) for device, entries in program.actions.items()}
    for _ in range(chooser.randint(1, 3)):
        here = chooser.choice([device for device, entries in lists.items() if entries] or list(lists))
        entries = lists[here]
        if not entries:
            continue
        one, other = chooser.randrange(len(entries)), chooser.randrange(len(entries))
        kind = chooser.choice(["drop", "double", "swap", "late", "move", "change"])
        if kind == "drop":
            del entries[one]
        elif kind == "double":
            entries.insert(other, entries[one])
        elif kind == "swap":
            entries[one], entries[other] = entries[other], entries[one]
        elif kind == "late":
            entries.insert(other, entries.pop(one))
        elif kind == "move":
            lists[chooser.choice(DEVICES)].insert(0, entries.pop(one))
        else:
            entries[one] = changed(entries[one], chooser)
    return Program({device: tuple(entries) for device, entries in lists.items()})


def changed(action: Action, chooser: random.Random) -> Action:
    device = chooser.choice(DEVICES)
    if isinstance(action, Send):
        return Send(action.tensor, device)
    if isinstance(action, Recv):
        return Recv(action.tensor, device)
    return Free(action.op) if isinstance(action, Compute) else Send(action.tensor, device)


def runs(graph: OpGraph, program: Program, devices: dict[str, RuntimeDevice]) -> dict[str, float]:
    """Run it; the value of every tensor that is left at the end, on whatever device."""
    executor = Executor(graph, executable_of(graph), program, devices, Updater(None), Eager())
    state = executor.start(StepInputs({}, 0, 0))
    executor.run(state)
    return {tensor: float(value) for values in state.values.values() for tensor, value in values.items()}


@given(seed=st.integers(0, 10**6))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_whole_programs_run_to_their_end(seed: int, devices: dict[str, RuntimeDevice]) -> None:
    graph = random_graph(seed)
    everything = [edge.tensor for edge in graph.edges]
    program = lower(graph, random_order(graph, seed), keep=everything)
    dry_run(graph, [program])
    assert runs(graph, program, devices) == expected_values(graph)


@given(seed=st.integers(0, 10**6))
@settings(derandomize=True, deadline=None, max_examples=400)
def test_damaged_programs_are_refused_or_run_to_their_end(seed: int, devices: dict[str, RuntimeDevice]) -> None:
    graph = random_graph(seed)
    program = damaged(lower(graph, random_order(graph, seed)), random.Random(seed))
    try:
        dry_run(graph, [program])
    except InternalError:
        return
    left, expected = runs(graph, program, devices), expected_values(graph)
    assert left.items() <= expected.items()


def test_the_damage_is_sometimes_harmless_and_sometimes_not() -> None:
    refused = 0
    for seed in range(200):
        graph = random_graph(seed)
        try:
            dry_run(graph, [damaged(lower(graph, random_order(graph, seed)), random.Random(seed))])
        except InternalError:
            refused += 1
    assert 50 < refused < 199
