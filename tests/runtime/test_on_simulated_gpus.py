"""Programs on GPUs that are simulated: real threads, executor and devices, and streams that do their work late."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
import torch
from runtime.program.random_spaces import AWAY, AWAY_ON_GPU, Lowered, random_lowered
from runtime.program.test_races import damaged, found, runs_dry
from runtime.random_graphs import random_graph, random_order
from runtime.simulated_gpus import Cell, SimulatedGpus

from dlplacer.core.graph import OpGraph
from dlplacer.frontend.torch.executable import Executable, Instruction, OpCode, Value
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.devices.cuda import CudaDevice, StreamBackend
from dlplacer.runtime.executor.backends import CudaGraphs, SegmentBackend
from dlplacer.runtime.executor.executor import Executor
from dlplacer.runtime.executor.run import StepInputs
from dlplacer.runtime.executor.stateful_ops import Updater
from dlplacer.runtime.program.program import (
    Compute,
    DeviceMemorySpace,
    Hold,
    MemorySpaces,
    Wait,
    lower,
    memory_spaces,
    with_streams,
)

pytestmark = pytest.mark.timeout(120)


def executable_of(graph: OpGraph, gpus: SimulatedGpus, empty: frozenset[str], computed: dict[str, float]) -> Executable:
    """Ops that make 1 + the sum of all that they read, and note it; tensors that only carry an order are not made."""

    def total_for(tensor: str) -> Callable[..., Cell]:
        def total(values: list[float]) -> float:
            computed[tensor] = 1.0 + sum(values)
            return computed[tensor]

        return lambda *cells: gpus.compute(cells, total)

    codes = {}
    for name in graph.topological_order:
        reads = tuple(dict.fromkeys(edge.tensor for edge in graph.edges_into[name] if edge.tensor not in empty))
        made = [name, *dict.fromkeys(edge.tensor for edge in graph.edges_from[name] if edge.tensor not in empty)]
        calls = tuple(Instruction(tensor, total_for(tensor), tuple(map(Value, reads)), {}) for tensor in made)
        codes[name] = OpCode(name, "call", reads, instructions=calls)
    return Executable(codes, (), None, False)


@contextmanager
def opened(spaces: MemorySpaces, gpus: SimulatedGpus) -> Iterator[dict[str, RuntimeDevice]]:
    """A device for each site; cores all on one core."""
    with ExitStack() as stack:
        devices: dict[str, RuntimeDevice] = {}
        for part, (name, space) in enumerate(spaces.items()):
            device: RuntimeDevice = CpuDevice(0)
            if space.has_streams:
                device.close()
                backend = StreamBackend("cuda", gpus)
                device = CudaDevice(int(space.memory[-1]), backend, part, "forced" if space.copies else "free")
            stack.callback(device.close)
            devices[name] = device
        yield devices


def right_values(lowered: Lowered, seed: int, gpus: SimulatedGpus | None = None) -> bool:
    """Run the programs; whether all that ops computed, and all that is left at the end, is what it should be."""
    gpus = gpus or SimulatedGpus(seed)
    computed: dict[str, float] = {}
    expected = numbers(lowered)
    with opened(lowered.spaces, gpus) as devices:
        executable = executable_of(lowered.graph, gpus, lowered.empty, computed)
        executors = [
            Executor(lowered.graph, executable, program, devices, Updater(None), SegmentBackend())
            for program in lowered.programs
        ]
        state = executors[0].start(StepInputs({}, 0))
        for executor in executors:
            executor.run(state)
        # The host is neither held up by copies nor waits for devices.
        assert gpus.blocked == gpus.synchronized == 0
        for device in devices.values():
            device.drain()
        left = [
            cell.slot.value == expected[tensor]
            for held in state.values.values()
            for tensor, cell in held.items()
            if cell is not None
        ]
        return all(left) and computed == expected


def numbers(lowered: Lowered, given: float = 0.0) -> dict[str, float]:
    """Op or tensor → its value, where ops that read nothing add a number."""
    values: dict[str, float] = {}
    for name in lowered.graph.topological_order:
        read = {edge.tensor for edge in lowered.graph.edges_into[name]} - lowered.empty
        value = 1.0 + (sum(values[tensor] for tensor in read) if read else given)
        values[name] = value
        values.update((edge.tensor, value) for edge in lowered.graph.edges_from[name])
    return {tensor: value for tensor, value in values.items() if tensor not in lowered.empty}


def is_here(lowered: Lowered) -> bool:
    return not {AWAY, AWAY_ON_GPU}.intersection(lowered.spaces.values())


def plans_here(count: int, most: int = 12) -> Iterator[tuple[int, Lowered]]:
    """The first random plans whose devices all belong to this process, and their seeds."""
    found_so_far = 0
    for seed in range(10**6):
        lowered = random_lowered(seed, most)
        if is_here(lowered):
            yield seed, lowered
            found_so_far += 1
            if found_so_far == count:
                return


def test_sites_are_those_of_the_devices() -> None:
    for _, lowered in plans_here(20):
        with opened(lowered.spaces, SimulatedGpus(0)) as devices:
            assert memory_spaces(devices, lowered.spaces) == lowered.spaces


def test_lowered_programs_compute_what_they_should() -> None:
    for seed, lowered in plans_here(150):
        assert right_values(lowered, seed), seed


# CUDA has 8 hardware queues for a device by default, and streams that share one block each other.
def test_programs_of_eight_gpus_need_no_more_than_eight_queues() -> None:
    names = [f"gpu{number}" for number in range(8)]
    spaces = {name: DeviceMemorySpace(f"cuda:{number}", has_streams=True) for number, name in enumerate(names)}
    most = 0
    for seed in range(20):
        graph = random_graph(seed, 60)
        plain = [lower(graph, random_order(graph, seed, tuple(names)))]
        empty = frozenset(edge.tensor for edge in graph.edges if not edge.bytes)
        lowered = Lowered(graph, spaces, empty, plain, with_streams(plain, spaces, empty))
        gpus = SimulatedGpus(seed, count=8)
        assert right_values(lowered, seed, gpus), seed
        used = [sum(stream.index == index for stream in gpus.streams) for index in range(8)]
        # The eighth is for what cores send.
        assert max(used) <= 7
        most = max(most, *used)
    assert most == 7


# The other way round: whatever was dropped or moved, if no race is found there is none to be seen.
def test_damaged_programs_without_races_compute_what_they_should() -> None:
    ran = 0
    for seed, lowered in plans_here(400):
        broken = damaged(lowered, random.Random(seed))
        if runs_dry(broken) and not found(broken):
            ran += 1
            assert right_values(broken, seed), seed
    assert ran > 50


# That the simulation shows races at all: without a WAIT or a HOLD, values are wrong now and then.
@pytest.mark.parametrize("kind", [Wait, Hold])
def test_races_show(kind: type) -> None:
    wrong = raced = 0
    for seed, lowered in plans_here(120):
        places = list(lowered.places(kind))
        if not places:
            continue
        broken = lowered.without(*random.Random(seed).choice(places))
        if found(broken):
            raced += 1
            wrong += not right_values(broken, seed)
    assert raced > 20
    assert wrong > 5


STEPS = 6


def right_over_steps(lowered: Lowered, seed: int, backend: SegmentBackend) -> tuple[bool, int]:
    """Whether steps with other inputs each, none of which the host waits for, compute what they should; and replays."""
    gpus = SimulatedGpus(seed)
    found: dict[str, list[float]] = {}
    (program,) = lowered.programs
    with opened(lowered.spaces, gpus) as devices:
        executable = with_inputs(lowered.graph, gpus, lowered.empty, found)
        executor = Executor(lowered.graph, executable, program, devices, Updater(None), backend)
        home = {
            action.op: name
            for name, actions in program.actions.items()
            for action in actions
            if isinstance(action, Compute)
        }
        for step in range(STEPS):
            bound = {}
            for code in executable.of_role("input"):
                bound[code.op] = cell = gpus.empty(device_of(lowered.spaces[home[code.op]]))
                cell.slot.value = float(step)
            del cell
            executor.run(executor.start(StepInputs(bound, 0)))
            del bound
        assert gpus.blocked == gpus.synchronized == 0
        for device in devices.values():
            device.drain()
        graphs = backend if isinstance(backend, CudaGraphs) else CudaGraphs()
        assert not [note for note in graphs.notes if "segment" in note]
    expected: dict[str, list[float]] = {}
    for step in range(STEPS):
        for tensor, value in numbers(lowered, float(step)).items():
            expected.setdefault(tensor, []).append(value)
    return found == expected, graphs.replays


def device_of(space: DeviceMemorySpace) -> torch.device:
    return torch.device(space.memory)


def with_inputs(
    graph: OpGraph, gpus: SimulatedGpus, empty: frozenset[str], found: dict[str, list[float]]
) -> Executable:
    """As `executable_of`: every op that reads nothing adds a number from outside, and all values are noted."""

    def total_for(tensor: str) -> Callable[..., Cell]:
        def total(values: list[float]) -> float:
            found.setdefault(tensor, []).append(1.0 + sum(values))
            return found[tensor][-1]

        return lambda *cells: gpus.compute(cells, total)

    codes = {}
    for name, code in executable_of(graph, gpus, empty, {}).codes.items():
        given = () if code.reads else (f"{name}.in",)
        reads = tuple(map(Value, code.reads or given))
        calls = tuple(replace(call, target=total_for(call.result), args=reads) for call in code.instructions)
        role = "call" if code.reads else "input"
        codes[name] = replace(code, role=role, value="".join(given), instructions=calls)
    return Executable(codes, (), None, False)


@pytest.mark.parametrize("replayed", [False, True])
def test_steps_follow_each_other_without_waiting(replayed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlplacer.runtime.executor.backends.captured_refusal", lambda code: None)
    replays = 0
    for seed, lowered in plans_here(80):
        if len(lowered.programs) == 1:
            backend = CudaGraphs(least=2) if replayed else SegmentBackend()
            right, count = right_over_steps(lowered, seed, backend)
            assert right, seed
            replays += count
    assert (replays > 20) == replayed
