"""Pins and colocation of pipelines: the split against brute force over those that keep them."""

import itertools
from dataclasses import replace
from random import Random

import pytest
from planning.pipeline.graphs import all_splits, chain, devices, random_dag

from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import InfeasibleError
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology
from dlplacer.planning.constrain import constrained
from dlplacer.planning.pipeline.blocks import blocks_of
from dlplacer.planning.pipeline.pipeline_search import Search, plan_pipeline
from dlplacer.planning.pipeline.schedules import order_of
from dlplacer.planning.pipeline.stage_split import best_split


def _least_compute_s(graph: OpGraph, topology: Topology, stages: int, held: Constraints) -> float | None:
    """The least time of the slowest stage over all splits and sequences of devices that keep the constraints."""
    blocks = blocks_of(graph)
    found = []
    for names in itertools.permutations(topology.device_index, stages):
        for choice in all_splits(blocks, stages):
            at = {
                graph.ops[op].id: names[choice[block]]
                for block, members in enumerate(blocks.members)
                for op in (*members, *blocks.backward[block])
            }
            kept = all(at[op] == pin for op, pin in held.pins.items())
            if kept and all(len({at[op] for op in ops}) == 1 for ops in held.colocate):
                busy = dict.fromkeys(names, 0.0)
                for op, name in at.items():
                    busy[name] += graph.op(op).time_on("x") or 0.0
                found.append(max(busy.values()))
    return min(found, default=None)


def _free_transfers(graph: OpGraph) -> OpGraph:
    return replace(graph, edges=tuple(replace(edge, bytes=0) for edge in graph.edges))


@pytest.mark.parametrize("seed", range(6))
def test_the_slowest_stage_is_the_least_that_the_constraints_allow(seed: int) -> None:
    random = Random(seed)
    graph, topology = _free_transfers(random_dag(seed, 5)), devices(["x"] * 3)
    count = random.choice([2, 3])
    names = [op.id for op in graph.ops if op.kind == "matmul"]
    held = Constraints(
        {name: random.choice(list(topology.device_index)) for name in random.sample(names, 2)},
        (tuple(random.sample(names, 2)),) if random.random() < 0.5 else (),
    )
    pinned = replace(graph, constraints=held)
    search = Search(pinned, topology)
    try:
        problems, _ = search.problems(order_of("1f1b", count, 1), 1)
    except InfeasibleError:
        problems = []
    splits = [split.bottleneck_s for problem in problems if (split := best_split(problem)) is not None]
    wanted = _least_compute_s(graph, topology, count, held)
    assert (min(splits) if splits else None) == (None if wanted is None else pytest.approx(wanted))


def test_a_pipeline_keeps_its_pins_or_says_that_it_cannot() -> None:
    graph, box = chain([1, 1, 1, 1], bytes_=0), devices(["x", "x"])
    first, second = box.device_index
    plan = plan_pipeline(constrained(graph, box, {"f0": second}), box, stages=2, micro_batches=2, schedule="1f1b")
    assert [stage.device for stage in plan.stages] == [second, first]
    held = constrained(graph, box, colocate=["f0,f2"])
    assert plan_pipeline(held, box, stages=2, micro_batches=2, schedule="1f1b").stage_of["f2"] == 0
    apart = constrained(graph, box, {"f0": first, "f1": second, "f2": first})
    with pytest.raises(InfeasibleError, match="no split into 2 contiguous stages keeps the memory and all pins"):
        plan_pipeline(apart, box, stages=2, micro_batches=2, schedule="1f1b")
    # Interleaved, every device has two stages: f0 and f2 on one, f1 and f3 on the other.
    turns = plan_pipeline(apart, box, stages=2, micro_batches=2, schedule="interleaved")
    assert [stage.device for stage in turns.stages] == [first, second, first, second]
