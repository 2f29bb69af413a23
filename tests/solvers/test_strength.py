"""How strong the solver's parts are: counts, bounds and makespans that worsen when a part stops earning.

Fixed seeds, one worker and deterministic work, so the clock decides nothing. Values are ticks that the code reached
when they were written down: what becomes better may be written down anew.
"""

import time
from functools import cache

import pytest
from solvers.helpers import one_worker

from dlplacer.core.options import Options
from dlplacer.files.load import load_graph, load_topology
from dlplacer.machines.costs.roofline_times import with_times
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.bounds import (
    _window_area,
    best_prices,
    critical_path,
    heads,
    lower_bounds,
    tails,
    whole_area,
)
from dlplacer.solvers.decomposition.sections import couple, find_sections
from dlplacer.solvers.decomposition.series import SectionChain, raise_suffix_bounds
from dlplacer.solvers.heuristics.list_rules import construct, list_schedule
from dlplacer.solvers.heuristics.randomized_restarts import improve
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.schedule import Incumbent

_FOREVER_S = 1e6


@cache
def _shipped(graph: str, topology: str, paper: bool) -> Instance:
    machine, options = load_topology(topology), Options.paper() if paper else Options()
    return build_instance(build_problem(with_times(load_graph(f"inception_v3-{graph}"), machine), machine, options))


def _last(instance: Instance) -> int:
    head = lower_bounds(instance, 0.0).head
    working = (op for op in range(instance.op_count) if op not in instance.sources)
    return max(working, key=lambda op: head[op] + instance.shortest[op])


@pytest.mark.parametrize(
    ("graph", "paper", "sections", "series"),
    [
        ("infer", False, 29, 29),
        ("infer", True, 29, 29),
        # Without the barrier's arcs from what nothing else reads: with them it is 34.
        ("train", False, 65, 65),
        ("train", True, 63, 63),
        ("train-colocated", False, 65, 32),
        ("train-colocated", True, 63, 30),
    ],
)
def test_the_shipped_graphs_fall_apart(graph: str, paper: bool, sections: int, series: int) -> None:
    instance = _shipped(graph, "dgx1-v100-2gpu", paper)
    found = find_sections(instance, _last(instance))
    assert (len(found), len(couple(instance, found))) == (sections, series)


@pytest.mark.parametrize(
    ("graph", "topology", "values"),
    [
        ("infer", "dgx1-v100-2gpu", (29354096, 29621213, 21811811, 29621213, 29750346)),
        (
            "train-colocated",
            "dgx1-v100-2gpu",
            (87257554, 87257554, 64538099, 87257554, 87493754),
        ),
        ("train", "mixed-2gpu", (10982625, 10982625, 17851609, 18136847, 18192189)),
    ],
)
def test_every_bound_keeps_its_value(graph: str, topology: str, values: tuple[int, ...]) -> None:
    instance = _shipped(graph, topology, True)
    head, tail = heads(instance), tails(instance)
    found = {
        "critical path": critical_path(instance),
        "heads with one machine": max(h + p + t for h, p, t in zip(head, instance.shortest, tail, strict=True)),
        "area": whole_area(instance),
        "area between heads and tails": _window_area(instance, best_prices(instance), head, tail),
        "energetic intervals": lower_bounds(instance).makespan,
    }
    weaker = {name: (value, known) for (name, value), known in zip(found.items(), values, strict=True) if value < known}
    assert not weaker


def test_sections_add_up_and_suffixes_add_what_is_outside_of_them() -> None:
    instance = _shipped("train", "dgx1-v100-8gpu", False)
    bounds = lower_bounds(instance)
    chain = SectionChain.of(instance, find_sections(instance, _last(instance)), one_worker(_FOREVER_S))
    raised = chain.raised(bounds, 5.0)
    suffixed = raise_suffix_bounds(chain, raised, Incumbent(one_worker(_FOREVER_S)), 0.05)
    assert bounds.makespan >= 46771676
    assert raised.makespan >= 46962171
    assert suffixed.makespan >= 47827013


def test_little_work_on_each_section_proves_most_of_them() -> None:
    instance = _shipped("infer", "dgx1-v100-2gpu", True)
    chain = SectionChain.of(instance, find_sections(instance, _last(instance)), one_worker(_FOREVER_S))
    assert len(chain.open) == 9
    chain.advance(0.03, time.monotonic() + _FOREVER_S)
    assert len(chain.open) <= 3
    assert chain.raised(lower_bounds(instance), 5.0).makespan >= 31173861


def test_restarts_improve_a_list_schedule() -> None:
    instance = _shipped("infer", "dgx1-v100-2gpu", True)
    incumbent = Incumbent(one_worker(_FOREVER_S))
    incumbent.offer(construct(instance, list_schedule))
    assert incumbent.best is not None
    assert incumbent.best.makespan <= 33865725
    improve(instance, incumbent, _FOREVER_S, 60)
    assert incumbent.best.makespan <= 32900000
