"""CPOP, PEFT, ETF, m-ETF, m-SCT, m-TOPO, min-cut and sequential: the rules, the bounds, and what each is named for."""

import importlib.util
from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random

import pytest
from solvers.brute_force import optimal_makespan
from solvers.helpers import broken_rules, make_graph, make_instance, make_machine, make_problem, one_worker
from solvers.random_problems import random_problem

from dlplacer.assemble import assemble
from dlplacer.check import violations
from dlplacer.errors import InfeasibleError, InputError
from dlplacer.graph import Edge, Op, OpGraph
from dlplacer.problem import Problem
from dlplacer.solvers.bounds import lower_bounds
from dlplacer.solvers.construct import Rule, construct
from dlplacer.solvers.cpop import cpop
from dlplacer.solvers.etf import etf, m_etf
from dlplacer.solvers.feasibility import require_feasible
from dlplacer.solvers.filling import by_module
from dlplacer.solvers.instance import Instance, build_instance
from dlplacer.solvers.methods import METHODS, RULES, run_rule
from dlplacer.solvers.packing import pack
from dlplacer.solvers.partition import min_cut
from dlplacer.solvers.peft import optimistic_costs, peft
from dlplacer.solvers.ranks import by_rank, upward_ranks
from dlplacer.solvers.sct import favourites, m_sct
from dlplacer.solvers.sequential import sequential
from dlplacer.solvers.timetable import Timetable
from dlplacer.solvers.topo import m_topo
from dlplacer.topology import Device, Link, Router, Topology

needs_metis = pytest.mark.skipif(importlib.util.find_spec("pymetis") is None, reason="pymetis is not installed")
BASELINES = [
    "cpop",
    "peft",
    "etf",
    "m-etf",
    "m-sct",
    "m-topo",
    pytest.param("min-cut", marks=needs_metis),
    "sequential",
]


def _run(method: str, instance: Instance) -> Timetable:
    timetable = RULES[method](instance, by_rank(instance, upward_ranks(instance)), None)
    assert timetable is not None
    assert not broken_rules(instance, timetable)
    return timetable


def _ends(instance: Instance, timetable: Timetable) -> list[int]:
    ops = zip(timetable.start, timetable.device, instance.duration, strict=True)
    return [start + duration[device] for start, device, duration in ops]


@cache
def _tiny(seed: int) -> tuple[Problem, int | None]:
    problem = make_problem(*random_problem(seed))
    makespan = optimal_makespan(problem.graph, problem.topology)
    return problem, None if makespan is None else int(makespan / problem.tick_s)


def _crowded(seed: int) -> Problem:
    """40 ops with parameters, groups, pins and little memory on 2 to 4 devices, some slower, around a router."""
    random = Random(seed)
    count = random.choice([2, 3, 4])
    ops, edges = [], []
    for i in range(40):
        ops.append(
            Op(
                f"k{i}",
                "test",
                time_s={"fast": random.randint(1, 20) / 10, "slow": random.randint(5, 60) / 10} if i % 7 else 0.0,
                output_bytes=random.randint(0, 9),
                colocate=random.choice([None] * 6 + ["a", "b"]),
                devices=(f"d{random.randrange(count)}", "d0") if random.random() < 0.15 else None,
                module=random.choice([None, "m1", "m2", "m3", "m4"]),
            )
        )
        readers = random.sample(range(i), min(i, random.choice([0, 1, 2, 3])))
        edges += [Edge(f"k{j}", f"k{i}", random.randint(0, 30), tensor=f"k{j}-k{i}") for j in readers]
        if random.random() < 0.3:
            ops.append(Op(f"w{i}", "parameter", time_s=0.0, weight_bytes=random.randint(0, 9)))
            edges.append(Edge(f"w{i}", f"k{i}", 20))
    total = sum(op.footprint_bytes for op in ops)
    capacity = int(total / count * random.choice([1.15, 1.4, 2.0]))
    devices = tuple(Device(f"d{i}", type="slow" if i == 2 else "fast", memory_bytes=capacity) for i in range(count))
    links = tuple(Link(device.id, "r", random.choice([10.0, 30.0]), 0.1) for device in devices)
    return make_problem(OpGraph(tuple(ops), tuple(edges)), Topology(devices, (Router("r"),), links))


@pytest.mark.parametrize("method", BASELINES)
def test_tiny_problems_against_all_placements_and_orders(method: str) -> None:
    found = 0
    for seed in range(3000, 3120):
        problem, optimum = _tiny(seed)
        try:
            require_feasible(problem)
            outcome = METHODS[method](problem, one_worker())
        except InfeasibleError:
            assert optimum is None, seed
            continue
        assert optimum is not None, seed
        assert outcome.schedule is not None, seed
        assert outcome.lower_bound <= optimum <= outcome.schedule.makespan, seed
        assert not violations(assemble(problem, outcome, outcome.schedule, method, 0.0, {})), seed
        found += 1
    assert found > 90


@pytest.mark.parametrize("method", BASELINES)
def test_crowded_problems_keep_every_rule(method: str) -> None:
    for seed in range(15):
        problem = _crowded(seed)
        require_feasible(problem)
        instance = build_instance(problem)
        found = run_rule(problem, instance, method, 10.0)
        assert found is not None, seed
        assert not broken_rules(instance, found), seed
        assert found.makespan >= lower_bounds(instance, 0.05).makespan, seed
        assert found == run_rule(problem, instance, method, 10.0), seed


@pytest.mark.parametrize("method", BASELINES)
def test_decided_blocks_stay_where_they_are(method: str) -> None:
    for seed in range(15):
        instance = build_instance(_crowded(seed))
        packed = pack(instance)
        assert packed is not None, seed
        found = construct(instance, RULES[method], packed)
        assert found is not None, seed
        assert [found.device[ops[0]] for ops in instance.members] == packed, seed
        loose = [device if block % 4 else -1 for block, device in enumerate(packed)]
        found = RULES[method](instance, by_rank(instance, upward_ranks(instance)), loose)
        if found is not None:
            assert not broken_rules(instance, found), seed
            decided = (found.device[ops[0]] for ops in instance.members)
            assert all(site in (-1, device) for site, device in zip(loose, decided, strict=True)), seed


@pytest.mark.parametrize("method", BASELINES)
def test_names_do_not_matter(method: str) -> None:
    for seed in range(10):
        problem = _crowded(seed)
        new = {op.id: f"{(37 * position) % 101}-{op.id}" for position, op in enumerate(problem.graph.ops)}
        ops = tuple(replace(op, id=new[op.id]) for op in problem.graph.ops)
        edges = tuple(
            replace(edge, source=new[edge.source], target=new[edge.target], tensor=new[edge.source] + str(number))
            for number, edge in enumerate(problem.graph.edges)
        )
        renamed = make_problem(OpGraph(ops, edges), problem.topology)
        found, again = (run_rule(p, build_instance(p), method, 10.0) for p in (problem, renamed))
        assert found == again, seed


@pytest.mark.parametrize("rule", [cpop, peft, etf, m_etf])
def test_the_order_of_ops_does_not_matter_without_ties(rule: Rule) -> None:
    for seed in range(20):
        random = Random(seed)
        times = {f"k{i}": random.randint(1, 10**6) / 10**5 for i in range(30)}
        edges = [
            (f"k{i}", f"k{j}", random.randint(1, 10**6)) for j in range(30) for i in range(j) if random.random() < 0.1
        ]
        names = list(times)
        random.shuffle(names)
        machine = make_machine(3, rate=1e5)
        given = make_instance(make_graph(times, edges), machine)
        shuffled = make_instance(make_graph({name: times[name] for name in names}, edges), machine)
        makespans = [rule(i, by_rank(i, upward_ranks(i)), None).makespan for i in (given, shuffled)]
        assert makespans[0] == makespans[1], seed


@pytest.mark.parametrize("method", BASELINES)
def test_one_device_runs_everything_without_a_pause(method: str) -> None:
    graph = make_graph({"w": 0, "a": 2, "b": 3, "c": 1}, [("w", "a", 9), ("a", "b", 5), ("a", "c", 5)])
    instance = make_instance(graph, make_machine(1))
    assert _run(method, instance).makespan == 6


@pytest.mark.parametrize("method", BASELINES)
def test_no_timetable_where_memory_runs_out(method: str) -> None:
    graph = make_graph({"a": 3, "b": 2, "c": 1}, [("a", "b", 1), ("b", "c", 1)], output_bytes={"a": 2, "b": 2, "c": 2})
    instance = make_instance(graph, make_machine(2, memory=3))
    assert RULES[method](instance, by_rank(instance, upward_ranks(instance)), None) is None


DIAMOND = make_graph(
    {"a": {"x": 2, "y": 1}, "b": {"x": 3, "y": 2}, "c": 2, "d": {"x": 2, "y": 5}},
    [("a", "b", 4), ("a", "c", 1), ("b", "d", 4), ("c", "d", 1)],
)
UNEQUAL = Topology((Device("d0", "x"), Device("d1", "y")), (), (Link("d0", "d1", 1.0),))


def test_cpop_keeps_the_critical_path_together() -> None:
    instance = make_instance(DIAMOND, UNEQUAL)
    # Mean durations 1.5, 2.5, 2, 3.5. Upward ranks: d 3.5, b 2.5+4+3.5 = 10, c 2+1+3.5 = 6.5, a 1.5+4+10 = 15.5.
    # Downward: b 1.5+4 = 5.5, c 1.5+1 = 2.5, d 5.5+2.5+4 = 12. Sums: a, b, d 15.5 and c 9: the path is a, b, d, which
    # takes 2+3+2 = 7 on x and 1+2+5 = 8 on y. On x: a 0-2, b 2-5; c on y at 2+1 = 3-5 (x: 5-7); d at 5+1 = 6-8.
    found = _run("cpop", instance)
    assert found.device == (0, 0, 1, 0)
    assert _ends(instance, found) == [2, 5, 5, 8]


def test_optimistic_costs() -> None:
    instance = make_instance(DIAMOND, UNEQUAL)
    # d: nothing follows. b: on x min(2, 4+5) = 2, on y min(4+2, 5) = 5. c: on x min(2, 1+5) = 2, on y min(1+2, 5) = 3.
    # a on x: b costs min(3+2, 4+2+5) = 5, c min(2+2, 1+2+3) = 4: 5.
    # a on y: b costs min(4+3+2, 2+5) = 7, c min(1+2+2, 2+3) = 5: 7.
    assert optimistic_costs(instance).tolist() == [[5, 7], [2, 5], [2, 3], [0, 0]]


def test_peft_looks_ahead() -> None:
    instance = make_instance(DIAMOND, UNEQUAL)
    # a: x ends at 2, 2+5 = 7; y at 1, 1+7 = 8: x, where HEFT takes y. b (mean cost 3.5) before c (2.5): x 5+2 = 7,
    # y 8+5 = 13: x. c: x 7+2 = 9, y 5+3 = 8: y. d: x max(5, 5+1)+2 = 8, y 9+5 = 14: x.
    found = _run("peft", instance)
    assert found.device == (0, 0, 1, 0)
    assert found.makespan == 8
    assert _run("heft", instance).device[0] == 1


def test_optimistic_costs_keep_a_block_together() -> None:
    graph = make_graph({"a": 1, "b": {"x": 9, "y": 1}}, [("a", "b", 2)], colocate={"a": "g", "b": "g"})
    # The other device would cost b only 2+1 = 3, but b goes where a is.
    assert optimistic_costs(make_instance(graph, UNEQUAL)).tolist() == [[9, 1], [0, 0]]


def test_etf_starts_early_rather_than_ending_early() -> None:
    graph = make_graph({"b": {"x": 1, "y": 10}, "c": {"x": 1, "y": 10}, "a": 1})
    instance = make_instance(graph, UNEQUAL)
    # All can start at 0. b, first among equals, takes the faster x 0-1; c can start at 0 on y: 0-10; a on x 1-2.
    # HEFT: b x 0-1, c x 1-2 (y: 10), a y 0-1.
    found = _run("m-etf", instance)
    assert (found.device, found.makespan) == ((0, 1, 0), 10)
    found = _run("heft", instance)
    assert (found.device, found.makespan) == ((0, 0, 1), 2)


def test_etf_is_repaired_where_memory_does_not_suffice() -> None:
    graph = make_graph({"a": 1, "b": 1, "c": 1}, [("a", "b", 5), ("b", "c", 5)], output_bytes={"a": 2, "b": 2, "c": 2})
    # Without limits all run on d0: 3. With room for two, c, started last, moves: it has its data at 2+5 and ends at 8.
    assert _run("etf", make_instance(graph, make_machine(2))).makespan == 3
    found = _run("etf", make_instance(graph, make_machine(2, memory=4)))
    assert found.device == (0, 0, 1)
    assert found.makespan == 8


def test_m_etf_passes_over_a_full_device() -> None:
    graph = make_graph(
        {"a": 1, "b": 1, "c": 1, "d": 9},
        [("a", "b", 2), ("b", "c", 2)],
        output_bytes={"a": 2, "b": 2, "c": 2, "d": 2},
    )
    # Ranks: a 7, b 4, c 1, d 9. d d0 0-9, a d1 0-1, b d1 1-2; d1 is full, so c waits for d0: 9-10. No better for ETF,
    # which had c on d1 2-3 before the repair.
    for method in ("m-etf", "etf"):
        found = _run(method, make_instance(graph, make_machine(2, memory=4)))
        assert (found.device, found.makespan) == ((1, 1, 0, 0), 10)


def test_etf_and_m_etf_agree_where_memory_is_plentiful() -> None:
    for seed in range(20):
        problem = _crowded(seed)
        rich = tuple(replace(device, memory_bytes=None) for device in problem.topology.devices)
        instance = make_instance(problem.graph, replace(problem.topology, devices=rich))
        assert _run("etf", instance) == _run("m-etf", instance)


FAVOURITE = make_graph({"i": 2, "g": 2, "f": 6, "u": 5}, [("i", "f", 3), ("i", "u", 1), ("g", "f", 2)])


def test_favourite_children_of_the_linear_program() -> None:
    # x: f not the favourite of i. Then u and g's claim on f are not: x + z >= 1, x + y >= 1. Ends: i, f 2+3x+6; g, f
    # 2+2y+6; i, u 2+z+5. Least for 3x = 2(1-x): x = 0.4, y = z = 0.6, makespan 9.2. Below 0.5: f is the favourite of i.
    assert favourites(make_instance(FAVOURITE, make_machine(2))) == (2, -1, -1, -1)


def test_m_sct_waits_for_the_favourite_child() -> None:
    instance = make_instance(FAVOURITE, make_machine(2))
    # i d0 0-2, g d1 0-2. At 2, d0 could start u, but f, for which it is the earlier device (2+2 = 4 against 2+3 = 5),
    # has all it reads: d0 waits, u goes to d1 at 2+1: 3-8, f to d0 4-10.
    found = _run("m-sct", instance)
    assert found.device == (0, 1, 0, 1)
    assert _ends(instance, found) == [2, 2, 10, 8]
    # m-ETF: u d0 2-7, f d1 5-11.
    assert _run("m-etf", instance).makespan == 11


def test_a_waiting_device_takes_an_urgent_op() -> None:
    graph = make_graph(
        {"i": 2, "g": 2, "f": 6, "u": 3, "v": 3}, [("i", "f", 6), ("g", "f", 4), ("g", "u", 0), ("g", "v", 0)]
    )
    instance = make_instance(graph, make_machine(2))
    # i d0 0-2, g d1 0-2. f is the favourite of i (8+6x = 8+4(1-x) at x = 0.4) and starts at 2+4 on d0, at 2+6 on d1: d0
    # waits. u and v may start anywhere at 2: u goes to d1, which does not wait, v to d0. f d0 6-12.
    assert favourites(instance)[0] == 2
    found = _run("m-sct", instance)
    assert found.device == (0, 1, 0, 1, 0)
    assert _ends(instance, found) == [2, 2, 12, 5, 5]


def test_greedy_favourites_of_large_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlplacer.solvers.sct._MOST_ARCS", 0)
    graph = make_graph({"i": 2, "g": 2, "f": 6, "u": 5.5}, [("i", "f", 3), ("i", "u", 1), ("g", "f", 2)])
    # By delay + upward rank: i, f 3+6 = 9; g, f 8, but f is taken; i, u 6.5, but i has its favourite.
    assert favourites(make_instance(graph, make_machine(2))) == (2, -1, -1, -1)


def test_m_topo_fills_up_to_the_cap() -> None:
    names = ["a", "b", "c", "d"]
    edges = [("a", "b", 1), ("b", "c", 1), ("c", "d", 1)]
    graph = make_graph(dict.fromkeys(names, 1), edges, output_bytes=dict.fromkeys(names, 2))
    # Cap 8/2 + 2 = 6: a, b, c on d0 0-3, d on d1 4-5.
    found = _run("m-topo", make_instance(graph, make_machine(2)))
    assert found.device == (0, 0, 0, 1)
    assert found.makespan == 5


def test_m_topo_shares_by_time_without_footprints() -> None:
    graph = make_graph({"a": 4, "b": 4, "c": 4, "d": 4, "e": 4, "f": 4})
    # Cap 24/2 + 4 = 16: four on d0, two on d1.
    assert _run("m-topo", make_instance(graph, make_machine(2))).device == (0, 0, 0, 0, 1, 1)


def test_a_pinned_op_does_not_end_a_device_that_is_being_filled() -> None:
    names = ["a", "b", "c", "d"]
    graph = make_graph(dict.fromkeys(names, 1), output_bytes=dict.fromkeys(names, 2), devices={"b": ("d1",)})
    # Cap 6 as above: b must go to d1, the others stay on d0.
    assert _run("m-topo", make_instance(graph, make_machine(2))).device == (0, 1, 0, 0)


def _layers() -> OpGraph:
    """Six modules, one op forward and one backward each, in a chain; the backward has its sum of gradients outside."""
    ops = [Op(f"f{i}", "test", time_s=1.0, output_bytes=1, module=f"m{i}") for i in range(6)]
    ops += [Op(f"b{i}", "test", time_s=1.0, output_bytes=1, module=f"m{i}") for i in reversed(range(6))]
    ops.append(Op("sum", "aten.add", time_s=1.0))
    chain = [*(f"f{i}" for i in range(6)), *(f"b{i}" for i in reversed(range(6))), "sum"]
    return OpGraph(tuple(ops), tuple(Edge(a, b, 1) for a, b in pairwise(chain)))


def test_sequential_fills_the_devices_module_by_module() -> None:
    problem = make_problem(_layers(), make_machine(2))
    # Six blocks of 2 bytes: the first device takes up to 12/2 + 1.25*2 = 8, so modules 0 to 3; the sum stays with b0.
    # Forward f0-f3 0-4, f4 and f5 5-7; b5 and b4 7-9, b3-b0 10-14, sum 14-15.
    instance = build_instance(problem)
    found = run_rule(problem, instance, "sequential", 1.0)
    assert found is not None
    names = [op.id for op in problem.graph.ops]
    second = {name for name, device in zip(names, found.device, strict=True) if device == 1}
    assert second == {"f4", "f5", "b4", "b5"}
    assert found.makespan * problem.tick_s == 15


def test_sequential_runs_the_program_in_order() -> None:
    graph = make_graph(
        {"a": 4, "b": 1, "c": 1, "d": 4},
        [("a", "c", 0)],
        devices={"a": ("d0",), "b": ("d1",), "c": ("d1",), "d": ("d1",)},
    )
    # d could run on d1 from 1 on, but c comes before it in the program and waits for a: b 0-1, c 4-5, d 5-9.
    assert _run("sequential", make_instance(graph, make_machine(2))).makespan == 9


def test_modules_become_blocks() -> None:
    problem = make_problem(_layers(), make_machine(2))
    merged = by_module(problem, build_instance(problem))
    names = [op.id for op in problem.graph.ops]
    blocks = sorted(sorted(names[op] for op in ops) for ops in merged.members)
    assert blocks == [["b0", "f0", "sum"], ["b1", "f1"], ["b2", "f2"], ["b3", "f3"], ["b4", "f4"], ["b5", "f5"]]
    assert merged.footprint == (2,) * 6


def test_modules_with_different_pins_stay_apart() -> None:
    ops = (
        Op("a", "test", time_s=1.0, module="m", devices=("d0",)),
        Op("b", "test", time_s=1.0, module="m", devices=("d1",)),
    )
    problem = make_problem(OpGraph(ops, ()), make_machine(2))
    assert by_module(problem, build_instance(problem)).members == ((0,), (1,))


@needs_metis
def test_min_cut_cuts_the_light_edge() -> None:
    graph = make_graph({"a": 2, "b": 2, "c": 2, "d": 2}, [("a", "b", 9), ("b", "c", 1), ("c", "d", 9)])
    # a, b | c, d: 0-4, then c at 4+1: 5-7, d 7-9.
    found = _run("min-cut", make_instance(graph, make_machine(2)))
    assert found.device[0] == found.device[1] != found.device[2] == found.device[3]
    assert found.makespan == 9


@needs_metis
def test_min_cut_gives_a_fast_device_more() -> None:
    graph = make_graph({f"k{i}": {"x": 1, "y": 3} for i in range(40)})
    found = _run("min-cut", make_instance(graph, UNEQUAL))
    assert 28 <= found.device.count(0) <= 32


@needs_metis
def test_metis_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """METIS writes its warnings past Python to standard output, where results belong."""
    for count in range(1, 6):
        for devices in range(1, 7):
            graph = make_graph(
                {f"k{i}": 1 if i else 100 for i in range(count)}, [("k0", f"k{i}", 1) for i in range(1, count)]
            )
            _run("min-cut", make_instance(graph, make_machine(devices)))
    assert capfd.readouterr() == ("", "")


def test_min_cut_without_pymetis_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlplacer.solvers.partition.available", lambda: False)
    instance = make_instance(make_graph({"a": 1}), make_machine(2))
    with pytest.raises(InputError, match=r"'min-cut' needs the package pymetis.*pip install 'dlplacer\[partition\]'"):
        min_cut(instance, [0])


def test_every_baseline_is_a_method() -> None:
    rules = {cpop, peft, etf, m_etf, m_sct, m_topo, min_cut, sequential}
    assert rules <= set(RULES.values())
    assert set(RULES) < set(METHODS)
