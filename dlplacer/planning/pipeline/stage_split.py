"""The optimal contiguous split: cuts that minimise the time of the slowest stage or link."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlplacer.core.topology import Device
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.planning.pipeline.blocks import Cuts
from dlplacer.planning.pipeline.pipeline_workload import DeviceChain

_TOLERANCE = 1 + 1e-9


@dataclass(frozen=True)
class StageSplit:
    """Cuts between stages.

    `borders`: [stage] → number of the cut after it; the last is the cut after all blocks. `bottleneck_s`: Seconds per
    micro-batch of the slowest stage or of the slowest transfer between two stages. `sum_s`: Seconds of one micro-batch
    through all stages and transfers, forward and backward.
    """

    borders: tuple[int, ...]
    bottleneck_s: float
    sum_s: float


@dataclass(frozen=True)
class SplitProblem:
    """The problem of splitting blocks into stages: cuts, devices, times and memory.

    `compute_s`: Device type → [cut] → seconds, forward and backward, of one micro-batch in all blocks before the cut.
    `held`: [stage] → micro-batches in flight.
    """

    cuts: Cuts
    chain: DeviceChain
    compute_s: Mapping[str, Any]
    micro_batches: int
    held: Sequence[int]

    @property
    def stages(self) -> int:
        """The number of stages over all devices."""
        return len(self.held)

    def device(self, stage: int) -> Device:
        """The device that runs a stage."""
        return self.chain.devices[stage % len(self.chain.devices)]

    def stage_s(self, stage: int) -> Any:
        """[cut before, cut after] → seconds of the stage for a micro-batch; infinite if the stage is not allowed."""
        total_s = self.compute_s[self.device(stage).type]
        seconds = total_s[None, :] - total_s[:, None]
        allowed = self.cuts.nested
        device = self.device(stage)
        if device.memory_bytes is not None:
            # Stages of one device share its memory equally, so that they remain independent.
            room_bytes = device.memory_bytes * len(self.chain.devices) / self.stages
            allowed = allowed & (self.memory_bytes(stage) <= room_bytes)
        return np.where(allowed, seconds, np.inf)

    def memory_bytes(self, stage: int) -> Any:
        """[cut before, cut after] → bytes of weights, gradients, state, and activations of the micro-batches in flight.

        Every micro-batch in flight keeps the stage's inputs, its tensors that a backward op reads, and its outputs,
        each once. Workspace counts once, as the largest of any op. A stage that reads a weight of another stage has a
        copy of it and of its gradient.
        """
        cuts = self.cuts
        share = 1 / self.micro_batches
        weights = cuts.total(cuts.blocks.weight_bytes)
        saved = cuts.saved_bytes
        kept = (saved[None, :] - saved[:, None]) + cuts.forward_bytes[:, None] + cuts.unstashed_bytes[None, :]
        kept -= cuts.passing_bytes
        workspace = share * max(cuts.blocks.workspace_bytes, default=0)
        own = weights[None, :] - weights[:, None] + cuts.tied_bytes
        return own + self.held[stage] * share * kept + workspace

    def transfers_s(self, stage: int) -> tuple[Any, Any]:
        """[cut] → seconds to send a micro-batch's activations into the stage, and to send their gradients back."""
        count = len(self.chain.devices)
        if stage == 0 or count == 1:
            nothing = np.zeros(self.cuts.count)
            return nothing, nothing
        rank = (stage - 1) % count
        routes = (
            (self.chain.forward[rank], self.cuts.forward_bytes),
            (self.chain.backward[rank], self.cuts.backward_bytes),
        )
        there, back = (_times(line, sizes / self.micro_batches) for line, sizes in routes)
        return there, back if self.cuts.blocks.trains else np.zeros(self.cuts.count)


def best_split(problem: SplitProblem) -> StageSplit | None:
    """The split of least bottleneck and, among equals, of least sum; None if no split fits into the memories.

    Dynamic programming over the cuts. Let g(k, I) be the least bottleneck of stages 0 … k that end at the cut I::

        g(k, I) = min over cuts J ⊂ I of max( g(k − 1, J), link(k, J), stage(k, J, I) )

    This is exact, because the cost of a stage depends only on the two cuts around it and on its place in the sequence:

    - its time is a difference of sums over blocks; its memory is such a difference plus bytes that cross either cut;
    - the bytes sent over a link are those that cross its cut, whatever the other cuts; a tensor that crosses several
      cuts passes through every stage between these cuts, and counts on each link;

    so the best way to reach J does not depend on later stages, and a prefix of an optimal split is optimal for its cut.
    A second pass of the same form finds the least sum among splits with no part above the bottleneck.
    """
    stage_s = [problem.stage_s(stage) for stage in range(problem.stages)]
    routes = [problem.transfers_s(stage) for stage in range(problem.stages)]
    slowest = []
    for stage, (there, back) in enumerate(routes):
        # Forward and backward transfers that share a link direction take turns.
        rank = (stage - 1) % len(problem.chain.devices)
        shared = set(problem.chain.forward_directions[rank]) & set(problem.chain.backward_directions[rank])
        slowest.append(there + back if shared else np.maximum(there, back))
    bottleneck_s, _ = _least(np.maximum, slowest, stage_s)
    if not np.isfinite(bottleneck_s):
        return None
    limit_s = bottleneck_s * _TOLERANCE
    into_s = [np.where(slow <= limit_s, sum(route), np.inf) for slow, route in zip(slowest, routes, strict=True)]
    sum_s, borders = _least(np.add, into_s, [np.where(table <= limit_s, table, np.inf) for table in stage_s])
    return StageSplit(borders, bottleneck_s, sum_s)


def _least(join: Any, into: Sequence[Any], tables: Sequence[Any]) -> tuple[float, tuple[int, ...]]:
    """The least value of a walk over nested cuts, with one step per stage, and its borders.

    `join`: ``np.add`` or ``np.maximum``, which combines the values of all steps. `into`: [stage] → [cut before] →
    value. `tables`: [stage] → [cut before, cut after] → value.
    """
    reached = np.where(np.arange(len(into[0])) == 0, 0.0, np.inf)
    came_from = []
    for enter, table in zip(into, tables, strict=True):
        whole = join(join(reached, enter)[:, None], table)
        came_from.append(whole.argmin(axis=0))
        reached = whole.min(axis=0)
    borders = [len(reached) - 1]
    for came in reversed(came_from[1:]):
        borders.append(int(came[borders[-1]]))
    return float(reached[-1]), tuple(reversed(borders))


def least_memory_bytes(problem: SplitProblem) -> float:
    """The least bytes, over all splits, that the fullest stage needs; capacities are ignored."""
    needs = [np.where(problem.cuts.nested, problem.memory_bytes(stage), np.inf) for stage in range(problem.stages)]
    return _least(np.maximum, [np.zeros(problem.cuts.count)] * problem.stages, needs)[0]


def _times(line: AlphaBeta, sizes: Any) -> Any:
    return np.where(sizes > 0, line.latency_s + line.s_per_byte * sizes, 0.0)
