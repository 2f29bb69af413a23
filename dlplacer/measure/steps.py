"""The measured steps of a plan and its baselines, comparisons of their numbers, and recordings of steps."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dlplacer.core.errors import first_line
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan, ScheduledOp
from dlplacer.core.topology import Topology
from dlplacer.frontend.torch.job import Job, autocast_of, loss_of
from dlplacer.machines.cores import usable_cores
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.planning.one_device import single_device_s
from dlplacer.problem.problem import build_problem
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import in_host_memory
from dlplacer.runtime.distributed.group import NETWORK, RankGroup
from dlplacer.runtime.distributed.measured_network import measured_machine
from dlplacer.runtime.distributed.replicate import with_exchange_times, with_network
from dlplacer.runtime.placed.placed_module import PlacedModule
from dlplacer.runtime.profile.machine_times import measured_topology


class EagerStep:
    """A step of a job in plain PyTorch, run with `module` on `device`; the constructor moves the module there.

    `parts` holds one job, or several jobs of the same model: the step then averages their losses and gradients. If
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

    def step(self) -> tuple[torch.Tensor, ...]:
        """Run a step on the device's thread, and return a tuple: the loss, or in inference the module's tensors.

        Gradients stay in ``.grad``.
        """

        def step() -> tuple[torch.Tensor, ...]:
            results = self._step()
            self._device.synchronize()
            return results

        return self._device.submit(step).result()

    def step_on_all_cores(self) -> tuple[torch.Tensor, ...]:
        """Run a step with as many threads as this process has cores."""
        before = torch.get_num_threads()
        torch.set_num_threads(len(usable_cores()))
        try:
            return self._step()
        finally:
            torch.set_num_threads(before)

    def _step(self) -> tuple[torch.Tensor, ...]:
        self.module.zero_grad(set_to_none=True)
        results = [self._pass(part) for part in self._parts]
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
    """The tensors in a module's return value, without its numbers, strings and None."""
    return tuple(leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


class OneProcess:
    """A group of one process; its constructor measures the links between the devices.

    `all_reduce` is the α-β line of an all-reduce between the replicas; None in a run without ranks. `devices` names the
    devices of all processes; `replica_of` maps ranks to replicas. `topology` has the plan's devices in the plan's
    order, with measured links.
    """

    rank, replicas = 0, 1
    all_reduce: AlphaBeta | None = None
    replica_of: Sequence[int] = (0,)

    def __init__(self, opened: Mapping[str, RuntimeDevice]) -> None:
        self.devices = tuple(device.name for device in opened.values())
        self.topology: Topology = measured_topology(opened)

    def gathered(self, value: Any) -> list[Any]:
        """[rank] → the value that the rank gave; all processes call it before any continues."""
        return [value]

    def with_exchange(self, graph: OpGraph) -> OpGraph:
        """The graph, with the times of its collectives computed from `all_reduce`; unchanged without replicas."""
        if self.replicas == 1 or self.all_reduce is None:
            return graph
        return with_exchange_times(graph, self.topology, self.all_reduce)


class SeveralProcesses(OneProcess):
    """The processes of a `RankGroup`, which measure together; `opened` are the devices of this process."""

    def __init__(self, group: RankGroup, opened: Mapping[str, RuntimeDevice], all_reduce: AlphaBeta) -> None:
        ranks = group.ranks
        self._group, self.all_reduce = group, all_reduce
        self.rank, self.replicas = group.rank, ranks.replicas
        self.devices = tuple(str(owner) for owners in ranks.owners for owner in owners.values())
        self.replica_of = [ranks.replica_of(rank) for rank in range(ranks.count)]
        machine = measured_machine(group, opened)
        self.topology = machine if ranks.replicas == 1 else with_network(machine)

    def gathered(self, value: Any) -> list[Any]:
        """Like `RankGroup.gathered`."""
        return self._group.gathered(value)


Spans = Mapping[str, Sequence[tuple[str, float, float]]]
"""Device of the plan → (op, begin, end) in order, in seconds since the step began."""


@dataclass(frozen=True)
class PlacedJob:
    """A job placed by a plan. `parts`: [replica] → its part of the job; `replica` is this process's replica."""

    placed: PlacedModule
    parts: Sequence[Job]
    replica: int = 0

    @property
    def job(self) -> Job:
        """The part of the job for this process's replica."""
        return self.parts[self.replica]

    @property
    def devices(self) -> dict[str, RuntimeDevice]:
        """Device of the plan → runtime device, for this process's devices except the network."""
        return {name: device for name, device in self.placed.devices.items() if not name.startswith(NETWORK)}

    def step(self) -> tuple[torch.Tensor, ...]:
        """Clear the gradients, run a step to its end, and return the loss, or the tensors of inference."""
        self.placed.zero_grad(set_to_none=True)
        if self.job.mode == "infer":
            result = tensors_in(self.placed(*self.job.args, **self.job.kwargs))
        else:
            result = (self.placed.step(*self.job.args, *self.job.targets, **self.job.kwargs),)
        for device in self.devices.values():
            device.drain()
        return result

    def recorded(self, count: int, group: OneProcess) -> list["Recording"]:
        """Recordings of `count` steps of the first replica; the same on every process.

        All processes begin a step together; times count from this beginning. The first step is discarded, because it
        compiles the recording code.
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
    """One recorded step; times count from its first op. `wall_s` is the caller's time on the slowest process."""

    spans: Spans
    wall_s: float

    @property
    def length_s(self) -> float:
        """Seconds from the start of the first op to the end of the last."""
        return max((end_s for spans in self.spans.values() for _, _, end_s in spans), default=0.0)


def joined(ranks: Sequence[tuple[float, Spans]], replica_of: Sequence[int]) -> Recording:
    """One recording of a step, joined from the first replica's spans; its `wall_s` is the slowest rank's."""
    lines = [line for (_, own), replica in zip(ranks, replica_of, strict=True) if not replica for line in own.items()]
    zero_s = min((ran[0][1] for _, ran in lines if ran), default=0.0)
    spans: dict[str, list[tuple[str, float, float]]] = {}
    for name, ran in lines:
        # If the plan has a network, every process runs a part of it.
        device = NETWORK if name.startswith(NETWORK) else name
        spans.setdefault(device, []).extend((op, start_s - zero_s, end_s - zero_s) for op, start_s, end_s in ran)
    return Recording(spans, max(wall_s for wall_s, _ in ranks))


def median_recording(recordings: Sequence[Recording]) -> Recording:
    """The recording of median length; for an even number, the shorter of the middle two."""
    return sorted(recordings, key=lambda recording: recording.length_s)[(len(recordings) - 1) // 2]


def measured_plan(predicted: Plan, recording: Recording) -> Plan:
    """The recording as a plan without transfers, for drawings and traces beside the predicted plan."""
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
"""Names of the baseline steps, with which fields of `RunReport` begin."""


@dataclass
class Baselines:
    """The baseline steps by name, the result of `compare_with_eager`, and reasons for missing baselines."""

    steps: dict[str, Callable[[], object]] = field(default_factory=dict)
    compared: tuple[float, float] | None = None
    left_out: list[str] = field(default_factory=list)


def home_of_all(plan: Plan) -> str | None:
    """The first device of a plan whose memory holds the whole model; None if none does."""
    devices = [device for device in plan.topology.devices if device.id != NETWORK]
    needed_bytes = sum(op.footprint_bytes for op in plan.graph.ops)
    for device in devices:
        if device.memory_bytes is None or needed_bytes <= device.memory_bytes:
            return device.id
    # Ops that are too large together may still fit over time, which only the problem decides.
    if len(devices) < len(plan.topology.devices):
        return None
    alone_s = single_device_s(build_problem(plan.graph, plan.topology, plan.options))
    return None if alone_s is None else devices[0].id


def made_baselines(main: PlacedJob, reference: nn.Module, group: OneProcess, compiled: bool) -> Baselines:
    """Compare the numbers of a placed step with plain PyTorch's, and make the steps to time.

    `reference`: a copy of the job's module from before the job was placed; plain PyTorch trains it.
    """
    found = Baselines()
    home = home_of_all(main.placed.plan)
    if home is None:
        found.left_out.append("plain PyTorch: the model fits on no single device")
        return found
    device = main.devices.get(home) or next(iter(main.devices.values()))
    try:
        if any(code.random for code in main.placed.captured.executable.codes.values()):
            found.left_out.append("a comparison of numbers: the step draws random numbers")
        else:
            found.compared = compare_with_eager(main, reference, device, group)
        second = copy.deepcopy(reference) if compiled else None
        eager = EagerStep([main.job], reference, device)
        eager.step()
    except torch.OutOfMemoryError:
        if group.all_reduce is not None:
            raise
        reference.to("cpu")
        found.left_out.append(f"plain PyTorch: {device.name} has too little memory beside the plan")
        return found
    found.steps[BASELINE] = eager.step
    if group.all_reduce is None and in_host_memory(main.devices.values()):
        found.steps[ALL_CORES] = eager.step_on_all_cores
    if second is not None:
        try:
            step = EagerStep([main.job], second, device, compiled=True)
            step.step()
            found.steps[COMPILED] = step.step
        except Exception as error:
            found.left_out.append(f"torch.compile: {first_line(error)}")
    return found


def compare_with_eager(
    placed: PlacedJob, reference: nn.Module, device: RuntimeDevice, group: OneProcess
) -> tuple[float, float]:
    """The largest difference of a placed step from plain PyTorch's step over all parts, and PyTorch's largest number.

    The loss is compared, and each process's gradients, or its parameters if the step has updated these; in inference,
    all tensors that the module returns. `reference` is the job's module before the step. It stays unchanged, because
    batch norm and the optimizer change a copy.
    """
    ours = placed.step()
    updated = placed.job.update is not None
    parameters = dict(placed.placed.named_parameters())
    eager = EagerStep(placed.parts, copy.deepcopy(reference), device)
    pairs: list[tuple[torch.Tensor | None, torch.Tensor | None]] = [*zip(ours, eager.step(), strict=True)]
    for name, other in eager.module.named_parameters():
        mine = parameters[name]
        if not mine.is_meta:  # it lives on another process
            pairs.append((mine.detach(), other.detach()) if updated else (mine.grad, other.grad))
    zeros = [(None, theirs) for _, theirs in pairs]
    found = group.gathered((_largest_difference(pairs), _largest_difference(zeros)))
    return _largest([error for error, _ in found]), _largest([number for _, number in found])


def _largest_difference(pairs: Sequence[tuple[torch.Tensor | None, torch.Tensor | None]]) -> float:
    """The largest difference within pairs; None counts as zeros. The result is NaN if only one side has a NaN.

    Tensors are compared in the host's memory, as float64 or complex128. Equal values, equal infinities and two NaNs
    differ by 0.
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
