"""The steps that are measured: of a plan and of its baselines, their numbers, and recordings of steps."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dlplacer.core.errors import first_line
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.core.topology import Topology
from dlplacer.frontend.torch.job import Job, autocast_of, loss_of
from dlplacer.frontend.torch.nodes import draws as draws_numbers
from dlplacer.machines.cores import usable_cores
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.planning.one_device import single_device_s
from dlplacer.problem.problem import build_problem
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import in_host_memory
from dlplacer.runtime.distributed.group import RankGroup
from dlplacer.runtime.distributed.measured_network import measured_machine
from dlplacer.runtime.distributed.rank_module import replica_seed
from dlplacer.runtime.distributed.ranks import NETWORK
from dlplacer.runtime.distributed.replicate import with_exchange_times, with_network
from dlplacer.runtime.executor.stateful_ops import drawn_with
from dlplacer.runtime.placed.placed_module import PlacedModule
from dlplacer.runtime.profile.machine_times import measured_topology


class EagerStep:
    """One step of a job in plain PyTorch on one of the devices, with a copy of the job's module.

    `parts` are the job; or several jobs of the same model, of whose losses and gradients the step takes the mean. If
    `compiled`, ``torch.compile`` compiles the module in the first step.
    """

    def __init__(
        self, parts: Sequence[Job], module: nn.Module, device: RuntimeDevice, *, compiled: bool = False
    ) -> None:
        job = parts[0]
        here = device.torch_device
        self.module = module.to(here)
        if job.mode == "infer" or not module.training:
            self.module.train(job.mode == "train")
        self._called: Any = torch.compile(self.module) if compiled else self.module
        self._loss = copy.deepcopy(job.loss).to(here) if isinstance(job.loss, nn.Module) else job.loss
        self._parts = [_moved(part, here) for part in parts]
        self._device = device
        self._optimizer = _torch_optimizer(job, self.module)

    def step(self, draws: Sequence[AbstractContextManager[object]] = ()) -> tuple[torch.Tensor, ...]:
        """A step on the device's thread: the loss when training, else the tensors that the module returns.

        Gradients are left in ``.grad``. `draws`: [part] → context in which it runs, if any.
        """

        def step() -> tuple[torch.Tensor, ...]:
            results = self._step(draws)
            self._device.synchronize()
            return results

        return self._device.submit(step).result()

    def step_on_all_cores(self) -> tuple[torch.Tensor, ...]:
        """A step with as many threads as this process has cores."""
        before = torch.get_num_threads()
        torch.set_num_threads(len(usable_cores()))
        try:
            return self._step(())
        finally:
            torch.set_num_threads(before)

    def _step(self, draws: Sequence[AbstractContextManager[object]]) -> tuple[torch.Tensor, ...]:
        self.module.zero_grad(set_to_none=True)
        results = []
        for part, context in zip(self._parts, draws or [nullcontext()] * len(self._parts), strict=True):
            with context:
                results.append(self._pass(part))
        if len(results) > 1:
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(len(results))
        if self._optimizer is not None:
            self._optimizer.step()
        return results[0] if len(results) == 1 else (torch.stack([loss for (loss,) in results]).mean(),)

    def _pass(self, job: Job) -> tuple[torch.Tensor, ...]:
        if job.mode == "infer":
            with torch.no_grad(), autocast_of(job, self._device.torch_device):
                return tensors_in(self._called(*job.args, **job.kwargs))
        with autocast_of(job, self._device.torch_device):
            loss = loss_of(job, self._called, self._loss)
        loss.backward()
        return (loss.detach(),)


def _torch_optimizer(job: Job, module: nn.Module) -> torch.optim.Optimizer | None:
    rule = job.update
    if rule is None:
        return None
    common: dict[str, Any] = {"params": module.parameters(), "lr": rule.lr, "weight_decay": rule.weight_decay}
    if rule.kind == "adam":
        return torch.optim.Adam(betas=rule.betas, eps=rule.eps, **common)
    return torch.optim.SGD(momentum=rule.momentum if rule.kind == "momentum" else 0.0, **common)


def _moved(job: Job, device: torch.device) -> Job:
    given = job.args, dict(job.kwargs), job.targets
    args, kwargs, targets = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), given)
    return replace(job, args=args, kwargs=kwargs, targets=targets)


def tensors_in(value: Any) -> tuple[torch.Tensor, ...]:
    """The tensors among what a module returns, which may hold numbers, texts and None beside them."""
    return tuple(leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


class OneProcess:
    """A group of one process, with the links between its devices, timed when it is made.

    `all_reduce` is the line of an all-reduce between the replicas, None in a run that is not over ranks; `devices` are
    those of all processes, `replica_of` their replicas by rank. `topology` has the plan's devices in the plan's order,
    with their measured links.
    """

    rank, replicas = 0, 1
    all_reduce: AlphaBeta | None = None
    replica_of: Sequence[int] = (0,)

    def __init__(self, opened: Mapping[str, RuntimeDevice]) -> None:
        self.devices = tuple(device.name for device in opened.values())
        self.topology: Topology = measured_topology(opened)

    def gathered(self, value: Any) -> list[Any]:
        """[rank] → its value; every process arrives before any continues."""
        return [value]

    def with_exchange(self, graph: OpGraph) -> OpGraph:
        """The graph whose collectives take the time of the measured all-reduce."""
        if self.replicas == 1 or self.all_reduce is None:
            return graph
        return with_exchange_times(graph, self.topology, self.all_reduce)


class SeveralProcesses(OneProcess):
    """The processes of a `RankGroup`, which measure together; `opened` are the devices of this one."""

    def __init__(self, group: RankGroup, opened: Mapping[str, RuntimeDevice], all_reduce: AlphaBeta) -> None:
        ranks = group.ranks
        self._group, self.all_reduce = group, all_reduce
        self.rank, self.replicas = group.rank, ranks.replicas
        self.devices = tuple(str(owner) for owners in ranks.owners for owner in owners.values())
        self.replica_of = [ranks.replica_of(rank) for rank in range(ranks.count)]
        machine = measured_machine(group, opened)
        self.topology = machine if ranks.replicas == 1 else with_network(machine)

    def gathered(self, value: Any) -> list[Any]:
        """As `RankGroup.gathered`."""
        return self._group.gathered(value)


Spans = Mapping[str, Sequence[tuple[str, float, float]]]
"""Device of the plan → its ops in order, with the seconds of their begins and ends since the step began."""


@dataclass(frozen=True)
class PlacedJob:
    """A plan of a job, placed.

    Attributes
    ----------
    parts
        [replica] → its part of the job.
    whole
        The job with the batch of which the parts are cut; None if there is none.
    replica
        That of this process.
    """

    placed: PlacedModule
    parts: Sequence[Job]
    whole: Job | None = None
    replica: int = 0

    @property
    def job(self) -> Job:
        """The part of this process's replica."""
        return self.parts[self.replica]

    @property
    def devices(self) -> dict[str, RuntimeDevice]:
        """Device of the plan → device, for those of this process that compute."""
        return {name: device for name, device in self.placed.devices.items() if not name.startswith(NETWORK)}

    def step(self) -> tuple[torch.Tensor, ...]:
        """Take a step to its end, without the gradients of the last one; the loss, or the tensors of inference."""
        self.placed.zero_grad(set_to_none=True)
        if self.job.mode == "infer":
            result = tensors_in(self.placed(*self.job.args, **self.job.kwargs))
        else:
            result = (self.placed.step(*self.job.args, *self.job.targets, **self.job.kwargs),)
        for device in self.devices.values():
            device.drain()
        return result

    def recorded(self, count: int, group: OneProcess) -> list["Recording"]:
        """Recordings of some steps of the first replica; the same on every process.

        All processes begin a step together, from which their clocks count. Ahead of them goes one that is not kept: it
        compiles what records.
        """
        own = []
        self.placed.records = True
        try:
            self.step()
            for _ in range(count):
                group.gathered(None)
                begin_ns = time.perf_counter_ns()
                self.step()
                wall_s = (time.perf_counter_ns() - begin_ns) * 1e-9
                own.append((wall_s, self._spans(begin_ns)))
        finally:
            self.placed.records = False
        return [joined(ranks, group.replica_of) for ranks in zip(*group.gathered(own), strict=True)]

    def _spans(self, begin_ns: int) -> Spans:
        found = {}
        for name, line in self.placed.timelines.items():
            late_s = (line.started_ns - begin_ns) * 1e-9
            spans = line.spans(self.placed.devices[name])
            found[name] = [(op, late_s + start_s, late_s + end_s) for op, start_s, end_s in spans]
        return found


@dataclass(frozen=True)
class Recording:
    """One step as it ran, from the begin of its first op; `wall_s` is the step as its caller sees it, on the slowest
    process.
    """

    spans: Spans
    wall_s: float

    @property
    def length_s(self) -> float:
        """From the first op's begin to the end of the last."""
        return max((end_s for spans in self.spans.values() for _, _, end_s in spans), default=0.0)


def joined(ranks: Sequence[tuple[float, Spans]], replica_of: Sequence[int]) -> Recording:
    """One recording of the seconds and spans that the ranks of the first replica recorded of a step."""
    lines = [line for (_, own), replica in zip(ranks, replica_of, strict=True) if not replica for line in own.items()]
    zero_s = min((ran[0][1] for _, ran in lines if ran), default=0.0)
    spans: dict[str, list[tuple[str, float, float]]] = {}
    for name, ran in lines:
        # Every process runs a part of the network, where the plan has one.
        device = NETWORK if name.startswith(NETWORK) else name
        spans.setdefault(device, []).extend((op, start_s - zero_s, end_s - zero_s) for op, start_s, end_s in ran)
    return Recording(spans, max(wall_s for wall_s, _ in ranks))


def median_recording(recordings: Sequence[Recording]) -> Recording:
    """The recording of median length; of an even number the shorter one in the middle."""
    return sorted(recordings, key=lambda recording: recording.length_s)[(len(recordings) - 1) // 2]


def median_op_times(recordings: Sequence[Recording]) -> dict[str, float]:
    """Op → median seconds."""
    times: dict[str, list[float]] = {}
    for recording in recordings:
        for op, start_s, end_s in (span for spans in recording.spans.values() for span in spans):
            times.setdefault(op, []).append(end_s - start_s)
    return {op: median(found) for op, found in times.items()}


def measured_plan(predicted: Plan, recording: Recording) -> Plan:
    """The recording in the form of a plan without transfers, to be drawn and traced next to the predicted one."""
    ops = [ScheduledOp(op, name, start, end) for name, ran in recording.spans.items() for op, start, end in ran]
    return replace(
        predicted,
        status="feasible",
        method="measured",
        makespan_s=recording.length_s,
        ops=tuple(sorted(ops, key=lambda entry: entry.start_s)),
        transfers=(),
        memory={},
    )


BASELINE, ALL_CORES, COMPILED = "baseline", "eager_all_cores", "compiled"
"""Steps by name, which begins the names of fields of `RunReport`."""


@dataclass(frozen=True, slots=True)
class Differences:
    """The largest differences of all processes to plain PyTorch, and its largest number: fields of `RunReport`."""

    max_abs_error: float | None = None
    largest_number: float | None = None
    full_batch_error: float | None = None
    draws: str = "none"


@dataclass
class Baselines:
    """The steps of the baselines by name, the differences of each plan, and why baselines are missing."""

    steps: dict[str, Callable[[], object]] = field(default_factory=dict)
    differences: dict[str, Differences] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def home_of_all(plan: Plan) -> str | None:
    """The first device of a plan with memory for the whole model; None if there is none."""
    devices = [device for device in plan.topology.devices if device.id != NETWORK]
    needed_bytes = sum(op.footprint_bytes for op in plan.graph.ops)
    for device in devices:
        if device.memory_bytes is None or needed_bytes <= device.memory_bytes:
            return device.id
    # Ops that together are too large may fit over time: only the problem knows.
    if len(devices) < len(plan.topology.devices):
        return None
    alone_s = single_device_s(build_problem(plan.graph, plan.topology, plan.options))
    return None if alone_s is None else devices[0].id


def made_baselines(
    candidates: Mapping[str, PlacedJob], reference: nn.Module, group: OneProcess, compiled: bool
) -> Baselines:
    """Compare the numbers of a step of each candidate with plain PyTorch's, and make the steps to time.

    `reference`: a copy of the job's module as it was before the job was placed; plain PyTorch trains it.
    """
    main = next(iter(candidates.values()))
    found = Baselines(differences={name: Differences() for name in candidates})
    home = home_of_all(main.placed.plan)
    if home is None:
        found.left_out.append("plain PyTorch: the model fits on no single device")
        return found
    device = main.devices.get(home) or next(iter(main.devices.values()))
    try:
        for name, placed in candidates.items():
            found.differences[name] = compare_with_eager(placed, reference, device, group)
        second = copy.deepcopy(reference) if compiled else None
        eager = EagerStep([main.job], reference, device)
        eager.step()
    except torch.OutOfMemoryError:
        if group.all_reduce is not None:
            raise
        found.left_out.append(f"plain PyTorch: {device.name} has too little memory beside the plan")
        return found
    found.steps[BASELINE] = eager.step
    if group.all_reduce is None and in_host_memory(main.devices.values()):
        found.steps[ALL_CORES] = eager.step_on_all_cores
    if second is not None:
        step = EagerStep([main.job], second, device, compiled=True)
        try:
            step.step()
            found.steps[COMPILED] = step.step
        except Exception as error:
            found.left_out.append(f"torch.compile: {first_line(error)}")
    return found


def compare_with_eager(
    placed: PlacedJob, reference: nn.Module, device: RuntimeDevice, group: OneProcess
) -> Differences:
    """Run one placed step and the same step in plain PyTorch: part by part, and with the whole batch at once.

    It compares the loss and the gradients of this process, or its parameters if the step has updated them. For
    inference it compares all tensors that the module returns. `reference` is the job's module before the step, which is
    left alone.
    """
    ours = placed.step()
    updated = placed.job.update is not None
    parameters = dict(placed.placed.named_parameters())

    # A copy each: batch norm's statistics and the optimizer change the module.
    def worst(jobs: Sequence[Job], draws: Sequence[SameDraws]) -> tuple[float, float]:
        eager = EagerStep(jobs, copy.deepcopy(reference), device)
        pairs: list[tuple[torch.Tensor | None, torch.Tensor | None]] = [*zip(ours, eager.step(draws), strict=True)]
        for name, other in eager.module.named_parameters():
            mine = parameters[name]
            if not mine.is_meta:  # it lives on another process
                pairs.append((mine.detach(), other.detach()) if updated else (mine.grad, other.grad))
        zeros = [(None, theirs) for _, theirs in pairs]
        found = group.gathered((_largest_difference(pairs), _largest_difference(zeros)))
        return _largest([error for error, _ in found]), _largest([number for _, number in found])

    ops = [code.op for code in placed.placed.captured.executable.codes.values() if code.random]
    seeds = [replica_seed(placed.placed.step_seed, replica) for replica in range(len(placed.parts))]
    draws = [SameDraws(ops, seed, device.torch_device) for seed in seeds] if ops else []
    error, number = worst(placed.parts, draws)
    if ops:
        same = all(part.drawn == len(ops) for part in draws)
        return Differences(error, number, draws="same" if same else "different")
    return Differences(error, number, None if placed.whole is None else worst([placed.whole], ())[0])


class SameDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, the n-th random call draws what the n-th of the given ops draws with the seed of a step.

    `drawn`: number of random calls so far. If there are more or fewer than ops, the draws were not the same.
    """

    def __init__(self, ops: Sequence[str], seed: int, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ops, self._seed, self._device = ops, seed, device
        self.drawn = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not draws_numbers(func, args, kwargs or {}):
            return func(*args, **(kwargs or {}))
        self.drawn += 1
        if self.drawn > len(self._ops):
            return func(*args, **(kwargs or {}))
        with drawn_with(self._seed, self._ops[self.drawn - 1], self._device):
            return func(*args, **(kwargs or {}))


def _largest_difference(pairs: Sequence[tuple[torch.Tensor | None, torch.Tensor | None]]) -> float:
    """Of the pairs in which one is there at least, where the other counts as zeros; NaN if one alone is no number.

    Both are taken to the host's memory, as numbers that hold every difference of two narrower ones. It is 0 where both
    are equal, infinities too, or both no numbers.
    """
    found = [0.0]
    for pair in pairs:
        there = next((each for each in pair if each is not None), None)
        if there is not None and there.numel():
            wide = torch.complex128 if there.is_complex() else torch.float64
            one, other = (torch.zeros_like(there) if each is None else each for each in pair)
            one, other = one.cpu().to(wide), other.cpu().to(wide)
            same = (one == other) | (one.isnan() & other.isnan())
            found.append(float((one - other).abs().masked_fill(same, 0.0).max()))
    return _largest(found)


def _largest(differences: Sequence[float]) -> float:
    """The largest value; NaN if any is NaN, which Python's max ignores unless it comes first."""
    return float(torch.tensor(differences, dtype=torch.float64).max())
