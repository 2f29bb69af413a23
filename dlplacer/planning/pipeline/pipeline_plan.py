"""A pipeline: its stages, its order, and its predicted times and memory."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from dlplacer.core.abilities import Shown
from dlplacer.core.expect import short_name
from dlplacer.core.table import Table
from dlplacer.core.units import format_seconds
from dlplacer.planning.pipeline.schedules import Action, Order, stage_ranks


@dataclass(frozen=True)
class Hop:
    """The route between two consecutive stages.

    `forward_s`, `backward_s`: Seconds to send the activations of a micro-batch forward, and their gradients back.
    `forward_directions`, `backward_directions`: The link directions that a transfer occupies; transfers that share a
    link direction take turns.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    forward_directions: tuple[Hashable, ...] = ()
    backward_directions: tuple[Hashable, ...] = ()


@dataclass(frozen=True)
class StageTimes:
    """Seconds of a stage for one micro-batch, and of its update once per step.

    `forward_s`, `backward_s`: Seconds of one pass; the backward pass computes gradients of inputs and weights.
    `weight_s`: The part of the backward pass that computes only gradients of weights, if the pass is split.
    """

    forward_s: float
    backward_s: float = 0.0
    weight_s: float = 0.0
    update_s: float = 0.0

    def of(self, kind: str) -> float:
        """The seconds of an action of this kind."""
        first_part_s = max(0.0, self.backward_s - self.weight_s)
        return {"F": self.forward_s, "B": self.backward_s, "I": first_part_s, "W": self.weight_s}[kind]


@dataclass(frozen=True, slots=True)
class TiedStages:
    """A weight of one stage that another stage also reads.

    `there_s`, `back_s`: Seconds to send the weight at the start of a step, and its gradient after the reader's last
    backward pass.
    """

    home: int
    reader: int
    there_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class ActionSpan:
    """An action, or the transfer of its result, with its start and end."""

    action: Action
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class PipelineTimeline:
    """The start and end of every pass and transfer.

    `transfers`: All transfers, named by the action whose result is sent. `step_s`: The end of the last rank, optimizer
    included.
    """

    ranks: tuple[tuple[ActionSpan, ...], ...]
    transfers: tuple[ActionSpan, ...]
    step_s: float
    update_s: tuple[float, ...] = field(default=())

    @property
    def busy_s(self) -> float:
        """Seconds of computation, summed over the ranks."""
        return sum(span.end_s - span.begin_s for spans in self.ranks for span in spans) + sum(self.update_s)

    @property
    def bubble(self) -> float:
        """The share of the ranks' time that they spend waiting."""
        whole_s = len(self.ranks) * self.step_s
        return 1 - self.busy_s / whole_s if whole_s else 0.0


def play(
    order: Order, stages: Sequence[StageTimes], hops: Sequence[Hop], ties: Sequence[TiedStages] = ()
) -> PipelineTimeline:
    """The simulated step: every rank runs its actions in order, each as soon as its data arrive.

    A transfer starts when its pass has ended and its link directions are free, first come, first served; the rank
    continues meanwhile.

    `hops`: [stage] → the route to stage + 1; transfers within a rank take no time. `ties`: Weights that are sent
    between stages once per step, over links that count as free.
    """
    return _Player(order, stages, hops, ties).play()


class _Player:
    def __init__(
        self,
        order: Order,
        stages: Sequence[StageTimes],
        hops: Sequence[Hop],
        ties: Sequence[TiedStages],
    ) -> None:
        self.order, self.stages, self.hops, self.ties = order, stages, hops, ties
        self.ranks = stage_ranks(order)
        self.ready_s: dict[int, float] = {}
        for tie in ties:
            self.ready_s[tie.reader] = max(tie.there_s, self.ready_s.get(tie.reader, 0.0))
        self.next = [0] * len(order)
        self.free_s = [0.0] * len(order)
        self.arrival_s: dict[tuple[int, str, int], float] = {}
        self.link_free_s: dict[Hashable, float] = {}
        self.waiting: list[tuple[float, int, Action, int, Hop]] = []
        self.spans: list[list[ActionSpan]] = [[] for _ in order]
        self.transfers: list[ActionSpan] = []
        self.number = 0

    def play(self) -> PipelineTimeline:
        while any(position < len(actions) for position, actions in zip(self.next, self.order, strict=True)):
            begin_s, rank = min(filter(None, map(self._ready, range(len(self.order)))), default=(math.inf, -1))
            if self.waiting and self.waiting[0][0] <= begin_s:
                self._send(*heappop(self.waiting))
            else:
                self._run(begin_s, rank)
        update_s = tuple(
            sum(self.stages[stage].update_s for stage, owner in self.ranks.items() if owner == rank)
            for rank in range(len(self.order))
        )
        done_s = [*self.free_s]
        for tie in self.ties:
            home, spans = self.ranks[tie.home], self.spans[self.ranks[tie.reader]]
            last_s = max(span.end_s for span in spans if span.action.stage == tie.reader)
            done_s[home] = max(done_s[home], last_s + tie.back_s)
        step_s = max(free_s + own_s for free_s, own_s in zip(done_s, update_s, strict=True))
        return PipelineTimeline(tuple(map(tuple, self.spans)), tuple(self.transfers), step_s, update_s)

    def _ready(self, rank: int) -> tuple[float, int] | None:
        """The earliest start of the rank's next action, or None while it waits for an action that has not run."""
        if self.next[rank] == len(self.order[rank]):
            return None
        action = self.order[rank][self.next[rank]]
        is_last = action.stage == len(self.stages) - 1
        needed = {"F": "in", "W": "I"}.get(action.kind, "F" if is_last else "out")
        arrived_s = self.arrival_s.get((action.stage, needed, action.micro_batch))
        if action.kind == "F" and action.stage == 0:
            arrived_s = 0.0
        if arrived_s is None:
            return None
        tied_s = self.ready_s.get(action.stage, 0.0) if action.kind == "F" else 0.0
        return max(self.free_s[rank], arrived_s, tied_s), rank

    def _run(self, begin_s: float, rank: int) -> None:
        action = self.order[rank][self.next[rank]]
        self.next[rank] += 1
        end_s = self.free_s[rank] = begin_s + self.stages[action.stage].of(action.kind)
        self.spans[rank].append(ActionSpan(action, begin_s, end_s))
        self.arrival_s[action.stage, action.kind, action.micro_batch] = end_s
        if action.kind == "F" and action.stage < len(self.stages) - 1:
            self._hand_over(action, action.stage + 1, end_s, self.hops[action.stage])
        elif action.kind in "BI" and action.stage > 0:
            self._hand_over(action, action.stage - 1, end_s, self.hops[action.stage - 1])

    def _hand_over(self, action: Action, there: int, now_s: float, hop: Hop) -> None:
        takes_s = hop.forward_s if there > action.stage else hop.backward_s
        if self.ranks[action.stage] == self.ranks[there] or not takes_s:
            self._arrived(action, there, now_s)
        else:
            self.number += 1
            heappush(self.waiting, (now_s, self.number, action, there, hop))

    def _send(self, now_s: float, _number: int, action: Action, there: int, hop: Hop) -> None:
        """Send the transfer that has waited longest as soon as its link directions are free."""
        ahead = there > action.stage
        takes_s, directions = (
            (hop.forward_s, hop.forward_directions) if ahead else (hop.backward_s, hop.backward_directions)
        )
        begin_s = max([now_s, *(self.link_free_s.get(direction, 0.0) for direction in directions)])
        end_s = begin_s + takes_s
        self.link_free_s.update(dict.fromkeys(directions, end_s))
        self.transfers.append(ActionSpan(action, begin_s, end_s))
        self._arrived(action, there, end_s)

    def _arrived(self, action: Action, there: int, at_s: float) -> None:
        self.arrival_s[there, "in" if there > action.stage else "out", action.micro_batch] = at_s


_TIMES, _SIZES = ("forward", "backward", "weight", "update"), ("memory", "sends", "returns")


@dataclass(frozen=True, kw_only=True)
class Stage(StageTimes):
    """A contiguous part of the model on a device, with its times for one micro-batch.

    `ops`: Its forward ops, including weights, in an order in which they can run. `later`: Its backward ops that earlier
    stages wait for, its other backward ops, and its optimizer ops. `memory_bytes`: Weights, gradients, state, and the
    tensors of the micro-batches in flight. `sends_bytes`, `returns_bytes`: Bytes per micro-batch of the activations
    sent to the next stage and of the gradients received from it. `held`: Most micro-batches in flight.
    """

    device: str
    ops: tuple[str, ...]
    held: int
    memory_bytes: int
    sends_bytes: int
    returns_bytes: int
    later: tuple[tuple[str, ...], ...] = ((), (), ())

    def to_dict(self) -> dict[str, Any]:
        """The stage in ``dlplacer pipeline --json``: its fields without `later`, and the number of its ops."""
        told = {name: value for name, value in vars(self).items() if name != "later"}
        return {**told, "op_count": len(self.ops), "ops": list(self.ops)}


@dataclass(frozen=True, repr=False)
class PipelinePlan(Shown):
    """The stages, the schedule and the prediction of a pipeline.

    `exact`: True if the split has the least bottleneck of all contiguous splits on its devices, and all sequences of
    devices were compared. `single_device_s`: Seconds of the whole batch on the best single device; None if the batch
    fits on none.
    """

    name: str
    stages: tuple[Stage, ...]
    schedule: str
    micro_batches: int
    order: Order
    timeline: PipelineTimeline
    exact: bool
    bottleneck_s: float
    single_device_s: float | None
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        faster = "" if self.speedup is None else f", speedup {self.speedup:.3f}x over the best single device"
        return (
            f"<PipelinePlan {short_name(self.name)}: {self.schedule}, {len(self.stages)} stages, "
            f"{self.micro_batches} micro-batches, {format_seconds(self.step_s)}{faster}>"
        )

    @property
    def step_s(self) -> float:
        """Predicted seconds of a step."""
        return self.timeline.step_s

    @property
    def speedup(self) -> float | None:
        """`single_device_s` ÷ `step_s`; None if the batch fits on no single device."""
        return None if self.single_device_s is None else self.single_device_s / self.step_s

    @property
    def devices(self) -> tuple[str, ...]:
        """[rank] → device."""
        return tuple(dict.fromkeys(stage.device for stage in self.stages))

    @property
    def stage_of(self) -> Mapping[str, int]:
        """Forward op → number of its stage."""
        return {op: number for number, stage in enumerate(self.stages) for op in stage.ops}

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer pipeline --json`` prints, without the comparison with op placement."""
        names = ("name", "schedule", "micro_batches", "step_s", "bottleneck_s", "exact", "single_device_s", "speedup")
        return {
            **{name: getattr(self, name) for name in names},
            "devices": list(self.devices),
            "bubble": self.timeline.bubble,
            "warnings": list(self.warnings),
            "stages": [stage.to_dict() for stage in self.stages],
            "order": [[str(action) for action in actions] for actions in self.order],
        }

    @property
    def table(self) -> Table:
        """A row per stage: device, ops, seconds per micro-batch forward and backward, memory and messages in bytes."""
        heads = ("stage", "device", "ops", "last_op|last op", *(f"{name}_s|{name}|seconds" for name in _TIMES), "held")
        rows = (
            (
                *(number, stage.device, len(stage.ops), stage.ops[-1] if stage.ops else ""),
                *(getattr(stage, f"{name}_s") for name in _TIMES),
                stage.held,
                *(getattr(stage, f"{name}_bytes") for name in _SIZES),
            )
            for number, stage in enumerate(self.stages)
        )
        return Table.described(rows, *heads, *(f"{name}_bytes|{name}|bytes" for name in _SIZES), title=self.name)
