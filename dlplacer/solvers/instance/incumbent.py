"""The best schedule so far and the best bound so far, reported whenever one of them improves."""

from collections.abc import Callable

from dlplacer.core.errors import InternalError
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.outcome import Budget
from dlplacer.solvers.instance.schedule import Schedule


class Incumbent:
    """The best schedule and bound of a solve.

    Attributes
    ----------
    admits
        Whether a schedule is a plan at all: rules that its instance does not know, such as memory over time.
    pass_on
        Hears of every better schedule.
    refused
        Whether a schedule better than the best one was none.
    """

    def __init__(
        self,
        budget: Budget,
        admits: Callable[[Schedule], bool] = lambda schedule: True,
        pass_on: Callable[[Schedule], object] = lambda schedule: None,
    ) -> None:
        self.budget, self.admits, self.pass_on = budget, admits, pass_on
        self.best: Schedule | None = None
        self.bound = 0
        self.refused = False

    def offer(self, schedule: Schedule | None) -> bool:
        """Keep a schedule if it is admitted and the best so far; whether it is."""
        if schedule is None or (self.best is not None and schedule.makespan >= self.best.makespan):
            return False
        if schedule.makespan >= FAR:
            return False
        if not self.admits(schedule):
            self.refused = True
            return False
        self.best = schedule
        self._report()
        self.pass_on(schedule)
        return True

    def accepts(self, schedule: Schedule) -> bool:
        """Offer a schedule; whether it is a plan at all, so that a search may go on from it, better or not."""
        is_better = self.best is None or schedule.makespan < self.best.makespan
        if self.offer(schedule):
            return True
        return not is_better and schedule.makespan < FAR and self.admits(schedule)

    def raise_bound(self, bound: int) -> None:
        """Keep a lower bound if it is the highest so far."""
        if bound > self.bound:
            self.bound = bound
            self._report()

    @property
    def closed(self) -> bool:
        """True if the gap that the user asked for is reached."""
        if self.best is None:
            return False
        return self.best.makespan - self.bound <= self.budget.gap * self.best.makespan

    def _report(self) -> None:
        # Bounds and schedules come from independent code, and CP-SAT has proven wrong optima: compare the two.
        if self.best is not None and self.bound > self.best.makespan:
            raise InternalError(
                f"the lower bound of {self.bound} ticks is above the makespan of {self.best.makespan} ticks of a "
                "schedule; please report it",
                bound_ticks=self.bound,
                device=list(self.best.device),
                start_ticks=list(self.best.start),
            )
        self.budget.report(None if self.best is None else self.best.makespan, self.bound)


class SchedulesOnly(Incumbent):
    """The schedules that a model finds which leaves out some of what plans may do: they go to the problem's incumbent.

    What bounds such a model bounds no plan, and a schedule read from its solution, whose transfers are decided anew,
    may be shorter than it. So bounds are dropped.
    """

    def __init__(self, outer: Incumbent) -> None:
        super().__init__(outer.budget.unreported, outer.admits, outer.offer)

    def raise_bound(self, bound: int) -> None:
        """Nothing."""


Begin = Callable[[Instance, Incumbent], None]
"""The beginning of a solve: it offers schedules of the problem's instance to the incumbent, and may raise the bound."""
