"""From schedules on a part of the machine to schedules on the whole."""

from dataclasses import replace

from dlplacer.problem.problem import Problem
from dlplacer.problem.route_table import TimedRoute
from dlplacer.problem.transfers import ScheduledTransfer
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.schedule import Schedule, in_sequence, sequence


class Restricted:
    """A problem on some of the devices of another (`dlplacer.problem.restriction`), and the way back.

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
        self.problem, self.devices = problem, devices
        self.instance = build_instance(problem)
        self._target = build_instance(whole)
        self._routes: dict[tuple[int, TimedRoute], TimedRoute] = {}

    def of_the_whole(self, schedule: Schedule) -> Schedule:
        """Return the schedule as one of the whole; without contention everything is as early as its order allows."""
        count = self._target.op_count
        device = tuple(self.devices[here] for here in schedule.device[:count])
        if self._target.traffic is None:
            order = [op for op in sequence(self.instance, schedule.device, schedule.start) if op < count]
            return in_sequence(self._target, device, order)
        start = schedule.start[:count]
        ends = (begin + self._target.duration[op][device[op]] for op, begin in enumerate(start))
        return Schedule(device, start, max(ends), tuple(map(self._on_links_of_the_whole, schedule.transfers)))

    def _on_links_of_the_whole(self, send: ScheduledTransfer) -> ScheduledTransfer:
        traffic = self._target.traffic
        assert traffic is not None
        size = traffic.requests[send.request].size
        key = size, send.route
        if key not in self._routes:
            self._routes[key] = traffic.routes.along([segment.hops for segment in send.route], size)
        return replace(send, target=self.devices[send.target], route=self._routes[key])
