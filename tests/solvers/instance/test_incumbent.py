"""What an incumbent keeps, and from what searches go on: never from a schedule that is no plan."""

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import linked
from solvers.helpers import make_graph, make_instance, make_machine, one_worker

import dlplacer as dp
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.decomposition import lns
from dlplacer.solvers.heuristics.common.upward_rank import by_rank, upward_ranks
from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import FAR, Instance, build_instance
from dlplacer.solvers.instance.schedule import Schedule, in_sequence


def _layered() -> tuple[Instance, Schedule]:
    instance = build_instance(build_problem(FAMILIES["layered"](60, 1, 1.0), linked(3), dp.Options.paper()))
    first = in_sequence(instance, [0] * instance.op_count, instance.order)
    return instance, first


def _few_on_the_last(schedule: Schedule) -> bool:
    """A rule that the instance does not know, as memory over time."""
    return schedule.device.count(2) <= 9


def _seen(monkeypatch: pytest.MonkeyPatch, module: object, name: str, position: int) -> list[Schedule]:
    original, seen = getattr(module, name), list[Schedule]()

    def wrapped(*arguments: object) -> object:
        schedule = arguments[position]
        assert isinstance(schedule, Schedule)
        seen.append(schedule)
        return original(*arguments)

    monkeypatch.setattr(module, name, wrapped)
    return seen


def test_windows_go_on_from_plans_only(monkeypatch: pytest.MonkeyPatch) -> None:
    instance, _ = _layered()
    begin = list_schedule(instance.limited(dict.fromkeys(range(60), (0, 1))), by_rank(instance, upward_ranks(instance)))
    incumbent = Incumbent(one_worker(), _few_on_the_last)
    assert incumbent.offer(begin)
    seen = _seen(monkeypatch, lns, "WindowSequence", 1)
    lns.search_windows(instance, incumbent, 60.0, 12)
    assert incumbent.refused
    assert len(seen) >= 12
    assert all(map(_few_on_the_last, seen))


def test_a_schedule_that_is_as_good_is_accepted_and_not_kept() -> None:
    instance = make_instance(make_graph({"a": 2.0, "b": 2.0}), make_machine(2))
    asked: list[Schedule] = []
    incumbent = Incumbent(one_worker(), lambda schedule: bool(asked.append(schedule)) or schedule.device[1] == 1)
    best, other, alone = (in_sequence(instance, device, (0, 1)) for device in ([0, 1], [1, 0], [0, 0]))
    assert incumbent.accepts(best)
    assert not incumbent.accepts(other)
    assert not incumbent.accepts(alone)
    assert incumbent.accepts(in_sequence(instance, [1, 1], (0, 1)))
    assert len(asked) == 4
    assert incumbent.best is best
    assert not Incumbent(one_worker()).accepts(Schedule((0, 0), (0, 0), FAR))
