"""A pipeline step played through: which pass runs when, from the times of stages and transfers."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from dlplacer.planning.pipeline.schedules import Action, Order, stage_ranks


@dataclass(frozen=True)
class Hop:
    """The route from a stage to the next.

    Attributes
    ----------
    forward_s, backward_s
        Seconds for the activations of a micro-batch one way, for their gradients the other way.
    forward_directions, backward_directions
        The link directions that a transfer occupies; transfers that share one take turns.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    forward_directions: tuple[Hashable, ...] = ()
    backward_directions: tuple[Hashable, ...] = ()


@dataclass(frozen=True)
class StageTimes:
    """Seconds of a stage for one micro-batch, and once per step.

    Attributes
    ----------
    forward_s, backward_s
        One pass; the backward one for inputs and weights together.
    weight_s
        The part of a backward in two parts that is for the weights.
    update_s
        The optimizer, after the last micro-batch.
    """

    forward_s: float
    backward_s: float = 0.0
    weight_s: float = 0.0
    update_s: float = 0.0

    def of(self, kind: str) -> float:
        """Seconds of an action of this kind."""
        first_part_s = max(0.0, self.backward_s - self.weight_s)
        return {"F": self.forward_s, "B": self.backward_s, "I": first_part_s, "W": self.weight_s}[kind]


@dataclass(frozen=True, slots=True)
class TiedStages:
    """A weight of one stage that another one reads too.

    Attributes
    ----------
    home, reader
        Stages.
    there_s, back_s
        Seconds to send the weight at the beginning of a step, and its gradient behind the reader's last backward.
    """

    home: int
    reader: int
    there_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class ActionSpan:
    """An action, or the transfer of its result, with its begin and end."""

    action: Action
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class PipelineTimeline:
    """The start and end of every pass and transfer.

    Attributes
    ----------
    ranks
        [rank] → its passes in order of time.
    transfers
        All transfers, named by the action whose result travels.
    step_s
        The end of the last rank, its optimizer included.
    """

    ranks: tuple[tuple[ActionSpan, ...], ...]
    transfers: tuple[ActionSpan, ...]
    step_s: float
    update_s: tuple[float, ...] = field(default=())

    @property
    def busy_s(self) -> float:
        """Seconds in which ranks compute, all ranks together."""
        return sum(span.end_s - span.begin_s for spans in self.ranks for span in spans) + sum(self.update_s)

    @property
    def bubble(self) -> float:
        """Share of the ranks' time in which they wait."""
        whole_s = len(self.ranks) * self.step_s
        return 1 - self.busy_s / whole_s if whole_s else 0.0


def play(
    order: Order, stages: Sequence[StageTimes], hops: Sequence[Hop], ties: Sequence[TiedStages] = ()
) -> PipelineTimeline:
    """The step as it runs: every rank takes its actions in order, each as soon as its data are there.

    A transfer starts when its pass has ended and its link directions are free, first come first served, and does not
    keep the rank from going on.

    Parameters
    ----------
    hops
        [stage] → the route to stage + 1; stages of one rank hand over at once.
    ties
        Weights that cross between stages once a step, over links that nothing else keeps busy.
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
            home = self.ranks[tie.home]
            done_s[home] = max(done_s[home], self._ended_s(tie.reader) + tie.back_s)
        step_s = max(free_s + own_s for free_s, own_s in zip(done_s, update_s, strict=True))
        return PipelineTimeline(tuple(map(tuple, self.spans)), tuple(self.transfers), step_s, update_s)

    def _ended_s(self, stage: int) -> float:
        """The end of a stage's last action."""
        return max(span.end_s for span in self.spans[self.ranks[stage]] if span.action.stage == stage)

    def _ready(self, rank: int) -> tuple[float, int] | None:
        """The earliest start of the rank's next action, or None while it waits for one that has not run."""
        if self.next[rank] == len(self.order[rank]):
            return None
        action = self.order[rank][self.next[rank]]
        last = len(self.stages) - 1
        if action.kind == "F":
            needed = ("F", 0) if action.stage == 0 else ("in", action.stage)
        elif action.kind == "W":
            needed = ("I", action.stage)
        else:
            needed = ("F", action.stage) if action.stage == last else ("out", action.stage)
        if action.kind == "F" and action.stage == 0:
            return max(self.free_s[rank], self.ready_s.get(0, 0.0)), rank
        arrived_s = self.arrival_s.get((needed[1], needed[0], action.micro_batch))
        if arrived_s is not None and action.kind == "F":
            arrived_s = max(arrived_s, self.ready_s.get(action.stage, 0.0))
        return None if arrived_s is None else (max(self.free_s[rank], arrived_s), rank)

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
        """The transfer that has waited longest, as soon as its link directions are free."""
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
