"""Gradient exchange as ops: the rewritten graph, its plan and its prediction."""

from dataclasses import replace
from pathlib import Path

import pytest
from frontend.torch.small_models import build
from runtime.random_plans import random_plan

from dlplacer.check import violations
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op, TensorSpec
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.files.formats import read_plan
from dlplacer.frontend import capture
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.machines.costs.collectives import AlphaBeta
from dlplacer.models import mlp
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import build_problem
from dlplacer.problem.routes import least_delay_routes
from dlplacer.runtime.distributed.group import NETWORK
from dlplacer.runtime.distributed.replicate import Bucket, replicated_plan, with_collectives, with_network
from dlplacer.runtime.program.checks import races
from dlplacer.runtime.program.program import lower
from dlplacer.solvers.instance.schedule import Outcome, ProblemSchedule

LINE = AlphaBeta(1e-4, 1e-9)


def two_layers() -> OpGraph:
    """Weights u (1,000 bytes) and v (3,000 bytes): forward 1 s each, backward of v, then of u, 2 s each."""
    ops, edges = [], []
    for name, size in (("u", 1000), ("v", 3000)):
        spec = TensorSpec((size // 4,), "float32", size)
        ops.append(
            Op(
                name,
                "parameter",
                0.0,
                outputs=(spec,),
                weight_bytes=size,
                gradient_bytes=size,
                colocate=name,
                phase="forward",
            )
        )
        ops.append(Op(f"f{name}", "aten.f", 1.0, phase="forward"))
        ops.append(Op(f"b{name}", "aten.b", 2.0, phase="backward", outputs=(spec,)))
        ops.append(Op(f"{name}.grad", "gradient", 0.0, phase="backward", colocate=name))
        edges += [Edge(name, f"f{name}", size, 0, name), Edge(f"b{name}", f"{name}.grad", size, 0, f"d{name}")]
    edges += [Edge("fu", "fv", 8), Edge("fv", "bv", 8), Edge("bv", "bu", 8)]
    return OpGraph(tuple(ops), tuple(edges))


def on_one_device(graph: OpGraph):
    problem = build_problem(graph, Topology((Device("d0", "cpu-core"),)), Options.paper())
    start, clock = [0] * len(graph.ops), 0
    for name in graph.topological_order:
        position = graph.index[name]
        start[position], clock = clock, clock + problem.duration[position][0]
    schedule = ProblemSchedule(problem, (0,) * len(graph.ops), tuple(start))
    return assemble(problem, Outcome(schedule, 0), schedule, "hand", 0.0, {})


# Backward of v ends at 4 s, of u at 6 s. An all-reduce takes 0.5 s and 1 ms per byte: v's takes 3.5 s from 4 s to
# 7.5 s, beside the backward of u; u's takes 1.5 s, from 7.5 s to 9 s. In one bucket it starts at 6 s: 6 + 0.5 + 4.
@pytest.mark.parametrize(("bucket_bytes", "count", "expected_s"), [(1, 2, 9.0), (3000, 2, 9.0), (3001, 1, 10.5)])
def test_collectives_overlap_with_backward_one_at_a_time(bucket_bytes: int, count: int, expected_s: float) -> None:
    plan = on_one_device(two_layers())
    assert plan.makespan_s == pytest.approx(6.0)
    made = replicated_plan(plan, 2, AlphaBeta(0.5, 1e-3), bucket_bytes)
    assert len(made.order[NETWORK]) == count
    assert made.makespan_s == pytest.approx(expected_s)
    assert made.lower_bound_s <= made.makespan_s
    assert not violations(made)


@pytest.mark.parametrize("optimizer", [None, "momentum"])
@pytest.mark.parametrize("seed", range(2))
def test_a_plan_with_collectives_keeps_all_rules_and_its_program_runs(
    tmp_path: Path, seed: int, optimizer: str | None
) -> None:
    job = replace(build("branches"), optimizer=optimizer)
    plan = random_plan(capture(job), 3, seed)
    made = replicated_plan(plan, 4, LINE, bucket_bytes=2000)
    assert not violations(made)
    assert {made.placement[op.id] for op in made.graph.ops if op.kind == "collective"} == {NETWORK}
    assert all(made.placement[op] == device for op, device in plan.placement.items())
    races(made.graph, [lower(made.graph, made.order)])
    made.save(tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert not violations(again)
    assert again.graph.capture["collectives"]["replicas"] == 4


def test_buckets_hold_gradients_of_one_device_in_the_order_in_which_they_finish() -> None:
    plan = random_plan(capture(mlp(batch_size=4)), 2, seed=1)
    made = replicated_plan(plan, 2, LINE, bucket_bytes=40_000)
    buckets = [Bucket(**each) for each in made.graph.capture["collectives"]["buckets"]]
    names = [name for bucket in buckets for name in bucket.parameters]
    assert sorted(names) == sorted(name for name, _ in mlp().module.named_parameters())
    for bucket in buckets:
        assert {plan.placement[f"{name}.grad"] for name in bucket.parameters} == {bucket.device}
    size = {op.id: op.weight_bytes for op in plan.graph.ops}
    for bucket in buckets:
        assert sum(size[name] for name in bucket.parameters[:-1]) < 40_000


def test_every_reader_of_a_gradient_reads_its_mean() -> None:
    job = replace(mlp(batch_size=4), optimizer="sgd")
    captured = capture_job(job, default_rewrites())
    names = [name for name, _ in job.module.named_parameters()]
    whole = with_collectives(captured, replicated_plan(random_plan(captured.graph, 1), 2, LINE))
    for name in names:
        for op in (f"{name}.grad", f"{name}.update"):
            assert f"{name}.grad.mean" in whole.executable.codes[op].reads
            assert {edge.source for edge in whole.graph.edges_into[op]} >= {"unpack.0"}
    assert {edge.target for edge in whole.graph.edges_from["pack.0"]} == {"all_reduce.0"}
    assert all(op.devices == ("d0",) for op in whole.graph.ops if op.kind != "collective")


@pytest.mark.parametrize("delay", ["store-and-forward", "cut-through"])
def test_the_network_is_no_short_cut(delay: str) -> None:
    links = (Link("d0", "d1", 1e9, 1e-6), Link("d1", "d2", 4e9, 5e-6))
    topology = Topology(tuple(Device(f"d{i}", "cpu-core") for i in range(3)), (), links)
    sizes = [0, 1, 1000, 10**9]
    before = least_delay_routes(topology, sizes, delay)
    after = least_delay_routes(with_network(topology), sizes, delay)
    for size in sizes:
        assert {pair: route for pair, route in after[size].items() if NETWORK not in pair} == before[size]
