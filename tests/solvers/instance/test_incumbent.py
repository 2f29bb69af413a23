"""What an incumbent keeps, and from what searches go on: never from a schedule that is no plan."""

from math import inf

import pytest
from solvers.helpers import make_graph, make_instance, make_machine, one_worker

from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.instance.instance import FAR
from dlplacer.solvers.instance.schedule import Budget, Incumbent, Schedule


def test_only_better_schedules_that_are_plans_are_kept() -> None:
    instance = make_instance(make_graph({"a": 2.0, "b": 2.0}), make_machine(2))
    incumbent = Incumbent(one_worker(), lambda schedule: schedule.device[1] == 1)
    best, other, alone = (in_sequence(instance, device, (0, 1)) for device in ([0, 1], [1, 0], [0, 0]))
    assert incumbent.offer(best)
    assert not any(map(incumbent.offer, (best, other, alone)))
    assert incumbent.best is best
    assert not Incumbent(one_worker()).offer(Schedule((0, 0), (0, 0), FAR))


@pytest.mark.parametrize(
    ("bound", "gap", "closed"), [(9, 0.0, False), (10, 0.0, True), (8, 0.2, True), (7, 0.2, False)]
)
def test_the_gap_is_a_share_of_the_makespan(bound: int, gap: float, closed: bool) -> None:
    incumbent = Incumbent(Budget(inf, gap))
    incumbent.offer(Schedule((0,), (0,), 10))
    incumbent.raise_bound(bound)
    assert incumbent.closed == closed
