"""Segments against an interpreter of programs: values, lifetimes, order and errors."""

import random
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime.random_graphs import DEVICES, random_graph, random_order

from dlplacer.core.errors import RunError
from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor import executor as executor_module
from dlplacer.runtime.executor.backends import SegmentBackend
from dlplacer.runtime.executor.executor import Executor
from dlplacer.runtime.executor.run import StepInputs, StepState
from dlplacer.runtime.executor.stateful_ops import Updater
from dlplacer.runtime.program.program import Compute, Free, Program, Recv, Send, interleaved, lower, lower_stages


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, RuntimeDevice]]:
    opened: dict[str, RuntimeDevice] = {name: CpuDevice(0) for name in DEVICES}
    yield opened
    for device in opened.values():
        device.close()


@dataclass
class Watch:
    """Which results of kernels live whenever a kernel begins."""

    born: dict[str, weakref.ref[torch.Tensor]] = field(default_factory=dict)
    seen: dict[str, set[str]] = field(default_factory=dict)

    def begin(self, op: str) -> None:
        self.seen[op] = {name for name, tensor in self.born.items() if tensor() is not None}

    def made(self, name: str, value: float) -> torch.Tensor:
        tensor = torch.tensor(value, dtype=torch.float64)
        self.born[name] = weakref.ref(tensor)
        return tensor


def code_of(graph: OpGraph, op: str, watch: Watch, chooser: random.Random) -> OpCode:
    """An op whose results depend on all that it reads, with arguments and results in one of the forms there are."""
    reads = tuple(dict.fromkeys(edge.tensor for edge in graph.edges_into[op] if edge.tensor.startswith("op")))
    results = [*dict.fromkeys(edge.tensor for edge in graph.edges_from[op] if edge.tensor.startswith(op)), f"{op}/rest"]

    def total(*args: Any, scale: float = 1.0, **kwargs: Any) -> float:
        parts = [part for arg in (*args, *kwargs.values()) for part in (arg if isinstance(arg, list) else [arg])]
        return scale + sum((number + 1) * float(part) for number, part in enumerate(parts))

    def all_results(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        watch.begin(op)
        value = total(*args, **kwargs)
        return tuple(watch.made(name, value + position) for position, name in enumerate(results))

    values = tuple(map(Value, reads))
    args, kwargs = chooser.choice(
        [
            (values, {}),
            (values, {"scale": 3.0}),
            ((0.5, *values), {}),
            ((list(values), 2), {}),
            ((), {f"name_{number}": value for number, value in enumerate(values)}),
        ]
    )
    whole = f"{op}#all"
    calls = [Instruction(whole, all_results, args, kwargs)]
    calls += [Instruction(name, getitem, (Value(whole), position), {}) for position, name in enumerate(results)]
    return OpCode(op, "call", reads, instructions=tuple(calls))


def executable_of(graph: OpGraph, watch: Watch, seed: int, returned: Sequence[str]) -> Executable:
    chooser = random.Random(seed)
    codes = {op: code_of(graph, op, watch, chooser) for op in graph.topological_order}
    return Executable(codes, tuple(returned), None, False)


def interpreted(
    graph: OpGraph, executable: Executable, programs: Sequence[Program]
) -> tuple[dict[str, dict[str, Any]], dict[str, set[str]]]:
    """(device → what it holds at the end, op → what is held or under way when it begins), one action after another."""
    held: dict[str, dict[str, Any]] = {name: {} for name in DEVICES}
    sent: dict[tuple[str, str], Any] = {}
    before: dict[str, set[str]] = {}
    for program in programs:
        for device, _, action in interleaved(program):
            values = held[device]
            if isinstance(action, Compute):
                code = executable.codes[action.op]
                before[action.op] = {name for each in held.values() for name in each} | {name for name, _ in sent}
                scope = dict(values)
                for call in code.instructions:
                    args = [_looked_up(value, scope) for value in call.args]
                    named = {name: _looked_up(value, scope) for name, value in call.kwargs.items()}
                    scope[call.result] = call.target(*args, **named)
                for edge in graph.edges_from[action.op]:
                    values[edge.tensor] = scope.get(edge.tensor) if edge.tensor in code.results else None
                values.update({name: scope[name] for name in executable.returned.intersection(code.results)})
            elif isinstance(action, Send):
                sent[action.tensor, action.target] = values[action.tensor]
            elif isinstance(action, Recv):
                values[action.tensor] = sent.pop((action.tensor, device))
            elif isinstance(action, Free):
                del values[action.tensor]
    return held, before


def _looked_up(value: Any, scope: Mapping[str, Any]) -> Any:
    if isinstance(value, Value):
        return scope[value.name]
    return [_looked_up(entry, scope) for entry in value] if isinstance(value, list) else value


def programs_of(graph: OpGraph, seed: int, count: int, staged: bool, keep: Sequence[str]) -> list[Program]:
    order = random_order(graph, seed, DEVICES[:count]) | {name: [] for name in DEVICES[count:]}
    if not staged:
        return [lower(graph, order, keep)]
    later = {op.id for op in graph.ops if op.phase == "backward"}
    stages = [
        {name: [op for op in ops if (op in later) == is_later] for name, ops in order.items()}
        for is_later in (False, True)
    ]
    return lower_stages(graph, stages, keep)


def run_all(
    graph: OpGraph, executable: Executable, programs: Sequence[Program], devices: dict[str, RuntimeDevice], record: bool
) -> StepState:
    executors = [Executor(graph, executable, program, devices, Updater(None), SegmentBackend()) for program in programs]
    state = executors[0].start(StepInputs({}, 0), record)
    for executor in executors:
        executor.run(state)
    return state


def numbers(held: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    return {
        device: {name: None if value is None else float(value) for name, value in values.items()}
        for device, values in held.items()
    }


@given(
    seed=st.integers(0, 10**6),
    count=st.sampled_from([1, 1, 3]),
    staged=st.booleans(),
    record=st.booleans(),
    longest=st.sampled_from([1, 2, 5, 1000]),
)
@settings(derandomize=True, deadline=None, max_examples=300)
def test_random_programs_do_what_an_interpreter_does(
    seed: int, count: int, staged: bool, record: bool, longest: int, devices: dict[str, RuntimeDevice]
) -> None:
    graph = random_graph(seed)
    made = sorted({edge.tensor for edge in graph.edges if edge.tensor.startswith("op")})
    returned = random.Random(seed).sample(made, len(made) // 4)
    programs = programs_of(graph, seed, count, staged, returned)
    watch = Watch()
    executable = executable_of(graph, watch, seed, returned)
    expected, held = interpreted(graph, executable, programs)
    wanted = numbers(expected)
    del expected
    watch.born.clear()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(executor_module, "LONGEST", longest)
        state = run_all(graph, executable, programs, devices, record)
    assert numbers(state.values) == wanted
    # Devices side by side begin their ops in any order.
    if count == 1:
        carries_order_only = {edge.tensor for edge in graph.edges} - set(made)
        assert watch.seen == {op: names - carries_order_only for op, names in held.items()}
    if record:
        for name, timeline in state.timelines.items():
            computed = [
                action.op for program in programs for action in program.actions[name] if isinstance(action, Compute)
            ]
            assert [op for op, _, _ in timeline.marks] == computed


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("longest", [2, 1000])
def test_every_op_that_fails_is_named(
    record: bool, longest: int, devices: dict[str, RuntimeDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "LONGEST", longest)
    graph = random_graph(7)
    assert len(graph.ops) > 5
    for bad in graph.ops:
        executable = executable_of(graph, Watch(), 7, ())

        def fail(*_: Any, **__: Any) -> None:
            raise ValueError("too many\nof them")

        codes = dict(executable.codes)
        last = Instruction("nothing", fail, (), {})
        codes[bad.id] = OpCode(bad.id, "call", instructions=(*codes[bad.id].instructions, last))
        program = programs_of(graph, 7, 3, False, ())[0]
        with pytest.raises(RunError, match=rf"^op '{bad.id}' failed on cpu:0: too many") as caught:
            run_all(graph, Executable(codes, (), None, False), [program], devices, record)
        assert isinstance(caught.value.__cause__, ValueError)


NAMES = ["x'); raise SystemExit", "__import__('os')", 'a"b', "v0", "c1", "row", "values", "del values", " ", "π\n"]
