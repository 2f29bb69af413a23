"""List scheduling in machine code: its schedules keep every rule, on the devices that it may use."""

import pytest
from benchmarks.families import FAMILIES
from benchmarks.machines import cluster, limited, star
from solvers.helpers import broken_rules, one_worker

from dlplacer.core.options import Options
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.heuristics.construct import construct
from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.instance.incumbent import Incumbent
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.local_search.arrays import build_arrays
from dlplacer.solvers.local_search.greedy import greedy_chain, offer_greedy


@pytest.mark.parametrize("family", ["layered", "transformer_like"])
@pytest.mark.parametrize("slack", [1.2, 10.0])
def test_rules_are_kept(family: str, slack: float) -> None:
    graph = FAMILIES[family](60, 0, 2.0)
    instance = build_instance(build_problem(graph, limited(star(4), graph, slack), Options(memory="sum")))
    built = build_arrays(instance)
    assert built is not None
    for devices in ((0, 1, 2, 3), (1, 3)):
        chain = greedy_chain(instance, *built, instance.order, devices)
        if chain is not None:
            found = chain.schedule()
            assert broken_rules(instance, found) == []
            assert set(found.device) <= set(devices)
            assert found.makespan == pytest.approx(chain.makespan, abs=len(found.transfers))
        assert chain is not None or slack < 2


def test_one_host_is_better_than_a_slow_network() -> None:
    instance = build_instance(build_problem(FAMILIES["layered"](300, 0, 1.0), cluster(16), Options()))
    incumbent = Incumbent(one_worker())
    offer_greedy(instance, incumbent, [tuple(range(16)), (0, 1, 2, 3)], 30.0)
    listed = construct(instance, list_schedule)
    assert incumbent.best is not None
    assert listed is not None
    assert broken_rules(instance, incumbent.best) == []
    assert set(incumbent.best.device) <= {0, 1, 2, 3}
    assert incumbent.best.makespan < 0.8 * listed.makespan


def test_the_first_list_schedule_is_made_whatever_the_tables_took() -> None:
    instance = build_instance(build_problem(FAMILIES["layered"](60, 0, 1.0), star(4), Options()))
    incumbent = Incumbent(one_worker())
    offer_greedy(instance, incumbent, [tuple(range(4))], 0.0)
    assert incumbent.best is not None
