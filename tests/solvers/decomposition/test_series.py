"""Series decomposition against the whole model and against brute force."""

import time

import pytest
from ortools.sat.python import cp_model
from solvers.brute_force import optimal_makespan
from solvers.helpers import broken_rules, make_graph, make_instance, make_machine, make_problem, no_bounds, one_worker
from solvers.random_problems import random_fork_join, random_problem

import dlplacer.solvers.decomposition.sections as sections_module
from dlplacer.core.errors import InfeasibleError
from dlplacer.solvers.bounds import lower_bounds
from dlplacer.solvers.decomposition.idle_ends import charge_idle_ends, ticks_with_idle_ends
from dlplacer.solvers.decomposition.sections import couple, find_sections
from dlplacer.solvers.decomposition.series import SectionChain
from dlplacer.solvers.feasibility import require_feasible
from dlplacer.solvers.ilp.constraints import create_variables
from dlplacer.solvers.ilp.cp_sat_search import SearchEnd, new_solver, reader, search
from dlplacer.solvers.ilp.ilp_model import build_model
from dlplacer.solvers.instance.instance import Instance, build_instance
from dlplacer.solvers.instance.schedule import Incumbent


def _chain(instance: Instance) -> SectionChain:
    bounds = lower_bounds(instance)
    last = max(range(instance.op_count), key=lambda op: bounds.head[op] + instance.shortest[op])
    chain = SectionChain.of(instance, find_sections(instance, last), one_worker())
    chain.advance(30.0, time.monotonic() + 60.0)
    assert not chain.open
    return chain


def _whole_optimum(instance: Instance, upper: int) -> int:
    incumbent = Incumbent(one_worker())
    model, variables = build_model(instance, no_bounds(instance), upper)
    assert search(model, reader(variables, instance), incumbent, 60.0) is SearchEnd.OPTIMAL
    return incumbent.bound


def test_series_without_a_first_schedule_end_the_rounds() -> None:
    chain = _chain(make_instance(*random_problem(92)))
    assert any(known.incumbent.best is None for known in chain.known.values())


def test_sections_lie_between_cut_ops() -> None:
    edges = [("u", "a", 1), ("u", "b", 1), ("a", "v", 1), ("b", "v", 1), ("v", "w", 1), ("w", "c", 1), ("w", "d", 1)]
    graph = make_graph(dict.fromkeys("puabvwcd", 1) | {"p": 0}, [("p", "a", 1), *edges])
    instance = make_instance(graph, make_machine(2))
    names = [graph.ops[op].id for op in range(instance.op_count)]
    sections = find_sections(instance, names.index("c"))
    # The parameter p and the op d do not lead to c through a cut; u, v, w and c are comparable to all that do.
    assert ["".join(names[op] for op in section.ops) for section in sections] == ["uabv", "vw", "wc"]
    assert [section.begins for section in sections] == [False, False, False]
    assert sections[0].instance.duration[-1] == (0, 0)


def test_a_forward_and_its_backward_section_are_solved_together() -> None:
    forward = [("u", "a", 1), ("u", "b", 1), ("a", "v", 1), ("b", "v", 1)]
    backward = [(f"{target}'", f"{source}'", size) for source, target, size in reversed(forward)]
    times = {"u": 1, "a": 4, "b": 4, "v": 1, "v'": 1, "a'": 9, "b'": 9, "u'": 1}
    groups = {name: name[0] for name in times}
    graph = make_graph(times, [*forward, ("v", "v'", 0), *backward], colocate=groups)
    instance = make_instance(graph, make_machine(2))
    sections = find_sections(instance, 7)
    series = couple(instance, sections)
    assert [entry.sections for entry in series] == [(0, 2), (1,)]
    # u, a on one device and b, v on the other. Forward: u 1, delay 1, b 4, and a's tensor is there before: 6.
    # Backward: v' 1, b' 9 or delay 1 and a' 9: 11 with the delay of b''s tensor to u'.
    chain = _chain(instance)
    assert chain.known[series[0].instance].incumbent.bound == 6 + 11
    # v 1 in between, u' 1 at the end.
    assert chain.raised(lower_bounds(instance), 1.0).makespan == 17 + 1 + 1
    assert min(schedule.makespan for schedule in chain.candidates()) == 19


# Forward a and b gain from two devices, backward they lose: each pass alone would take the other placement.
def test_what_joined_sections_take_together_bounds_the_whole() -> None:
    forward = [("u", "a", 1), ("u", "b", 1), ("a", "v", 1), ("b", "v", 1)]
    backward = [(f"{target}'", f"{source}'", 20) for source, target, _ in reversed(forward)]
    times = {"u": 1, "a": 10, "b": 10, "v": 1, "v'": 1, "a'": 2, "b'": 2, "u'": 1}
    graph = make_graph(times, [*forward, ("v", "v'", 0), *backward], colocate={name: name[0] for name in times})
    instance = make_instance(graph, make_machine(2))
    chain = _chain(instance)
    # Apart: forward u 1, delay 1, b 10 = 12; backward v' 1, delay 20, a' 2 = 23. On one device: 1 + 20 and 1 + 2 + 2.
    assert chain.known[chain.series[0].instance].incumbent.bound == 21 + 5
    # The best of each pass alone would allow 12 + 5. v 1 and u' 1 are outside both.
    assert chain.raised(lower_bounds(instance), 1.0).makespan == 26 + 1 + 1


def test_a_device_pays_for_what_it_waits_at_the_ends_of_a_section() -> None:
    edges = [("u", "a", 2), ("u", "b", 2), ("a", "v", 1), ("b", "v", 1)]
    instance = make_instance(make_graph({"u": 1, "a": 6, "b": 6, "v": 1}, edges), make_machine(2))
    (section,) = find_sections(instance, 3)
    model, bounds = cp_model.CpModel(), lower_bounds(section.instance)
    variables = create_variables(model, section.instance, no_bounds(section.instance), 100)
    charge_idle_ends(model, section.instance, variables, section, bounds, 0)
    model.minimize(variables.start[3] - variables.start[0])
    solver = new_solver(1, 0, 60.0)
    assert solver.solve(model) == cp_model.OPTIMAL
    # These rows alone say it all. Apart, say u and a on d0: b starts at 1 + 2 on d1, and v no earlier than 3 + 6 there.
    # By work alone it would be 7; on one device it is 1 + 12.
    assert solver.objective_value == 9


def test_idle_ends_bound_a_section_without_a_search() -> None:
    # u 1, six branches of 4, then v, on three devices. Two devices but u's get their first branch at 1 + 2 and send the
    # last one's tensor for 3, so within 13 ticks they hold one branch each and u's three. In fractions 13 would do.
    branches = "abcdef"
    edges = [*(("u", name, 2) for name in branches), *((name, "v", 3) for name in branches)]
    graph = make_graph({"u": 1, **dict.fromkeys(branches, 4), "v": 1}, edges)
    instance = make_instance(graph, make_machine(3))
    (section,) = find_sections(instance, graph.index["v"])
    bounds = lower_bounds(section.instance)
    assert ticks_with_idle_ends(section, bounds) == 14
    known = _chain(instance).known[section.instance].incumbent
    assert known.best is not None
    assert bounds.makespan < 14 == known.bound == known.best.makespan


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_the_parts_add_up_to_the_optimum(first: int) -> None:
    """Identical devices, unlimited memory and nothing that joins the blocks but their cut ops."""
    for seed in range(first, first + 20):
        problem = make_problem(*random_fork_join(seed, 4, plain=True))
        instance = build_instance(problem)
        chain = _chain(instance)
        bound = chain.raised(lower_bounds(instance), 1.0).makespan
        found = next(chain.candidates())
        assert not broken_rules(instance, found), seed
        assert bound == found.makespan == _whole_optimum(instance, found.makespan), seed


@pytest.mark.parametrize("refined", [False, True])
@pytest.mark.parametrize("first", [1000, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1040, 1080))])
def test_bounds_hold_whatever_joins_the_parts(first: int, refined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if refined:
        monkeypatch.setattr(sections_module, "_LARGEST_SERIES", 2)
        monkeypatch.setattr(sections_module, "_LARGEST_REFINED", 2)
    for seed in range(first, first + 15):
        graph, topology = random_fork_join(seed, 2, plain=False)
        problem = make_problem(graph, topology)
        try:
            require_feasible(problem)
        except InfeasibleError:
            continue
        if len(graph.ops) > 8:
            continue
        instance, optimum = build_instance(problem), optimal_makespan(graph, topology)
        chain = _chain(instance)
        bounds = chain.raised(lower_bounds(instance), 1.0)
        for schedule in chain.candidates():
            assert not broken_rules(instance, schedule), seed
        if optimum is not None:
            assert bounds.makespan * problem.tick_s <= optimum, seed
            # Raised heads and tails leave room for an optimal schedule.
            upper = int(optimum / problem.tick_s)
            model, _ = build_model(instance, bounds, upper)
            assert new_solver(1, 0, 60.0).solve(model) == cp_model.OPTIMAL, seed


@pytest.mark.parametrize("seed", range(2000, 2008))
def test_idle_rows_cut_off_no_optimum(seed: int) -> None:
    instance = build_instance(make_problem(*random_fork_join(seed, 3, plain=False)))
    if not all(instance.allowed):
        return
    for section in find_sections(instance, instance.order[-1]):
        bounds = lower_bounds(section.instance)
        values = []
        for rows in (False, True):
            model, variables = build_model(section.instance, no_bounds(section.instance), 200)
            if rows:
                charge_idle_ends(model, section.instance, variables, section, bounds, 0)
            solver = new_solver(1, 0, 60.0)
            assert solver.solve(model) == cp_model.OPTIMAL
            values.append(solver.objective_value)
        assert ticks_with_idle_ends(section, bounds) <= values[0] == values[1]
