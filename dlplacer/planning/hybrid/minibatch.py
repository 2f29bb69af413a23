"""The mini-batch of least training time, with the best modules to recompute for each size.

A module of a training step either keeps its inner activations or recomputes them. Tensors that other modules read in
the forward pass are always stored, so that modules can choose independently.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dlplacer.core.abilities import Shown
from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.topology import Device
from dlplacer.machines.costs.roofline_times import required_time_s

_GIVEN = ("parameter", "buffer", "input", "constant")


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Seconds to recompute a module's inner activations, and bytes to store them."""

    time_s: float
    stored_bytes: int


@dataclass(frozen=True)
class StepChoices:
    """A training step with modules whose inner activations may be recomputed.

    `fixed_bytes`: Bytes of weights, gradients, state, inputs, activations between modules, and the largest workspace.
    `modules`: Module path → its recomputation; modules without inner activations are left out. `workspace_bytes`: The
    largest workspace. `fixed_s`: Seconds of the step without recomputation.
    """

    fixed_s: float
    fixed_bytes: int
    modules: Mapping[str, Recomputation]
    workspace_bytes: int = 0


def step_choices(graph: OpGraph, device_type: str) -> StepChoices:
    """The choices of a captured training step on a device type.

    Raises InputError if the graph has no backward pass, or an op has no time on the device type.
    """
    if not any(op.phase == "backward" for op in graph.ops):
        raise InputError(f"graph {graph.name!r} has no backward pass; capture it with mode 'train'")
    time_s = {op.id: required_time_s(op, device_type) for op in graph.ops}
    inner: dict[str, dict[str, int]] = defaultdict(dict)
    crossing_bytes = 0
    for op in graph.ops:
        saved_bytes = _saved_bytes(graph, op)
        if not saved_bytes:
            continue
        if op.kind != "input" and _stays_inside(graph, op):
            inner[block_of(op)][op.id] = saved_bytes
        else:
            crossing_bytes += saved_bytes
    modules = {block: _recomputation(graph, time_s, saved) for block, saved in inner.items()}
    held = sum(op.weight_bytes + op.gradient_bytes + op.state_bytes for op in graph.ops)
    workspace = max(op.workspace_bytes for op in graph.ops)
    return StepChoices(sum(time_s.values()), held + crossing_bytes + workspace, modules, workspace)


def block_of(op: Op) -> str:
    """The module that keeps or recomputes an op: the parent of its module, or its module at top level."""
    path = op.module or ""
    return path.rpartition(".")[0] or path


def _saved_bytes(graph: OpGraph, op: Op) -> int:
    """Bytes of a forward op's outputs that the backward pass reads; 0 for parameters and buffers, which always stay."""
    if op.phase != "forward" or op.kind in ("parameter", "buffer"):
        return 0
    read = {edge.output: edge.bytes for edge in graph.edges_from[op.id] if graph.op(edge.target).phase == "backward"}
    return sum(read.values())


def _stays_inside(graph: OpGraph, op: Op) -> bool:
    readers = (graph.op(edge.target) for edge in graph.edges_from[op.id])
    return bool(op.module) and all(block_of(reader) == block_of(op) for reader in readers if reader.phase == "forward")


def _recomputation(graph: OpGraph, time_s: Mapping[str, float], saved: Mapping[str, int]) -> Recomputation:
    block = block_of(graph.op(next(iter(saved))))

    def is_held(op: Op) -> bool:
        """True for weights, inputs, and results stored for other modules."""
        return op.kind in _GIVEN or (_saved_bytes(graph, op) > 0 and not _stays_inside(graph, op))

    again: set[str] = set()
    waiting = list(saved)
    while waiting:
        name = waiting.pop()
        if name not in again:
            again.add(name)
            sources = (graph.op(edge.source) for edge in graph.edges_into[name])
            waiting.extend(source.id for source in sources if block_of(source) == block and not is_held(source))
    return Recomputation(sum(time_s[name] for name in again), sum(saved.values()))


@dataclass(frozen=True)
class BatchPlan:
    """The plan for a mini-batch of one size.

    `bound_bytes`: M_bound (Zou et al. 2017, eq. 5), the bytes left for workspaces without recomputation; if negative,
    some modules must be recomputed. `step_s`: T*(X); None if the batch does not fit. `epochs`: E(X); None if training
    does not converge. `training_s`: Seconds of the training; None if the size of the data set is unknown.
    """

    batch: int
    bound_bytes: int
    step_s: float | None
    memory_bytes: int | None
    recomputed: tuple[str, ...]
    epochs: float | None
    training_s: float | None
    reason: str = ""

    @property
    def effort_s(self) -> float:
        """The training time or, if the data set's size is unknown, T* · E ÷ batch; the least is best.

        It is infinite if the batch does not fit or does not converge. T* · E alone would favour the smallest batch.
        """
        if self.step_s is None or self.epochs is None:
            return math.inf
        return self.step_s / self.batch * self.epochs if self.training_s is None else self.training_s


def plan_batches(
    steps: Mapping[int, StepChoices],
    memory_bytes: int,
    dataset_size: int | None = None,
    epochs: Callable[[int], float | None] = lambda batch: 1.0,
) -> tuple[BatchPlan, ...]:
    """A plan per mini-batch size, by training time; sizes that do not fit or do not converge come last.

    `dataset_size`: |D|, the samples of an epoch; None ranks by time per sample. `epochs`: E(X), the epochs to the
    target accuracy; None if training does not reach it.
    """
    if not steps:
        raise InputError("there are no mini-batch sizes to choose from; give at least one")
    if dataset_size is not None and dataset_size < 1:
        raise InputError(f"the data set has {dataset_size} samples; give at least 1")
    plans = [_planned(batch, step, memory_bytes, dataset_size, epochs(batch)) for batch, step in steps.items()]
    return tuple(sorted(plans, key=lambda plan: plan.effort_s))


def _planned(
    batch: int, step: StepChoices, memory_bytes: int, dataset_size: int | None, epochs: float | None
) -> BatchPlan:
    bound_bytes = memory_bytes - _memory_bytes(step, ()) + step.workspace_bytes
    chosen = None if epochs is None else _recomputed(step, memory_bytes)
    if chosen is None:
        least_bytes = step.fixed_bytes + max((each.stored_bytes for each in step.modules.values()), default=0)
        reason = "training with so large a batch is not known to converge"
        if epochs is not None:
            reason = (
                f"weights, gradients, inputs and activations between modules need {least_bytes} bytes; the device has "
                f"{memory_bytes}"
            )
        return BatchPlan(batch, bound_bytes, None, None, (), epochs, None, reason)
    step_s = step.fixed_s + sum(step.modules[name].time_s for name in chosen)
    training_s = None if dataset_size is None or epochs is None else math.ceil(dataset_size / batch) * step_s * epochs
    return BatchPlan(batch, bound_bytes, step_s, _memory_bytes(step, chosen), chosen, epochs, training_s)


def _memory_bytes(step: StepChoices, recomputed: tuple[str, ...]) -> int:
    """The bytes that the step holds and stores, plus memory for the largest module during its recomputation."""
    stored = sum(each.stored_bytes for name, each in step.modules.items() if name not in recomputed)
    return step.fixed_bytes + stored + max((step.modules[name].stored_bytes for name in recomputed), default=0)


def _recomputed(step: StepChoices, memory_bytes: int) -> tuple[str, ...] | None:
    """The modules to recompute for the least time within the memory; None if no choice fits.

    HiGHS minimizes Σ t_i r_i exactly (r_i = 1: recompute i), so that fixed + Σ m_i (1 − r_i) + b fits and b ≥ m_i r_i.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    names, most = list(step.modules), max((each.stored_bytes for each in step.modules.values()), default=0)
    if _memory_bytes(step, ()) <= memory_bytes:
        return ()
    if step.fixed_bytes + most > memory_bytes:
        return None
    size = np.array([step.modules[name].stored_bytes for name in names]) / most
    time_s = np.array([step.modules[name].time_s for name in names])
    free = (memory_bytes - step.fixed_bytes) / most
    rows = np.vstack([np.append(-size, 1.0), np.column_stack([np.diag(size), -np.ones(len(names))])])
    limits = np.append(free - size.sum(), np.zeros(len(names)))
    constraints = [LinearConstraint(rows, ub=limits)]
    while True:
        result = milp(
            np.append(time_s / (time_s.max() or 1.0), 0.0),
            integrality=np.append(np.ones(len(names)), 0),
            bounds=Bounds(0, 1),
            constraints=constraints,
            options={"mip_rel_gap": 0.0},
        )
        taken = result.x[:-1] > 0.5
        chosen = tuple(name for name, is_taken in zip(names, taken, strict=True) if is_taken)
        if _memory_bytes(step, chosen) <= memory_bytes:
            return chosen
        # HiGHS allows a row to be exceeded by a relative 1e-6, but bytes are exact: exclude this one choice.
        cut = np.append(np.where(taken, 1.0, -1.0), 0.0)
        constraints.append(LinearConstraint(cut[None, :], ub=taken.sum() - 1))


@dataclass(frozen=True, slots=True)
class Batches(Shown):
    """Mini-batches on a device, by training time, or by time per sample if the data set is unknown."""

    device: Device
    plans: tuple[BatchPlan, ...]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer advise minibatch --json`` prints."""
        return {"device": self.device.id, "batches": [asdict(plan) for plan in self.plans]}
