"""From schedules of a restricted problem to schedules of the problem itself."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from dlplacer.problem.problem import Problem
from dlplacer.problem.route_table import TimedRoute
from dlplacer.problem.transfers import ScheduledTransfer
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.schedule import Schedule, in_sequence, sequence


class Restricted:
    """A problem with less freedom than another (`dlplacer.problem.restriction`), and the way back.

    Parameters
    ----------
    devices
        [device of the restricted problem] → device of the whole.

    Attributes
    ----------
    instance
        Of the restricted problem.
    """

    def __init__(self, problem: Problem, devices: tuple[int, ...], whole: Problem) -> None:
        self.problem, self.devices, self.whole = problem, devices, whole
        self.instance = build_instance(problem)
        self._target = build_instance(whole)
        self._routes: dict[tuple[int, TimedRoute], TimedRoute] = {}

    def schedules(self, schedule: Schedule) -> Iterator[Schedule]:
        """The schedule as one of the whole: everything when it was, and everything as early as its order allows.

        The first takes no more memory at any time than it did, the second may end earlier; where the options are the
        same they are one.
        """
        target, count = self._target, self._target.op_count
        device = tuple(self.devices[here] for here in schedule.device[:count])
        both_send = self.instance.traffic is not None and target.traffic is not None
        if both_send:
            start = schedule.start[:count]
            yield Schedule(device, start, max(self._ends(device, start)), self._transfers(schedule))
        if not both_send or self.problem.options != self.whole.options:
            order = [op for op in sequence(self.instance, schedule.device, schedule.start) if op < count]
            yield in_sequence(target, device, order)

    def _transfers(self, schedule: Schedule) -> tuple[ScheduledTransfer, ...]:
        """The transfers over the links of the whole; of those that serve one request there, the first to arrive."""
        chosen: dict[tuple[int, int], ScheduledTransfer] = {}
        for send in sorted(schedule.transfers, key=lambda send: send.end):
            mapped = self._on_links_of_the_whole(send)
            chosen.setdefault((mapped.request, mapped.target), mapped)
        return tuple(chosen.values())

    @cached_property
    def _request(self) -> tuple[int, ...]:
        """[transfer request] → that of the whole which it serves."""
        mine, its = self.instance.traffic, self._target.traffic
        assert mine is not None
        assert its is not None
        if self.problem.options.transfers == self.whole.options.transfers:
            return tuple(range(len(mine.requests)))
        number_of = {request.tensor: number for number, request in enumerate(its.requests)}
        return tuple(number_of[request.tensor] for request in mine.requests)

    def _ends(self, device: tuple[int, ...], start: tuple[int, ...]) -> list[int]:
        return [begin + self._target.duration[op][device[op]] for op, begin in enumerate(start)]

    def _on_links_of_the_whole(self, send: ScheduledTransfer) -> ScheduledTransfer:
        traffic = self._target.traffic
        assert traffic is not None
        number = self._request[send.request]
        size = traffic.requests[number].size
        key = size, send.route
        if key not in self._routes:
            self._routes[key] = traffic.routes.along([segment.hops for segment in send.route], size)
        return replace(send, request=number, target=self.devices[send.target], route=self._routes[key])
