"""What a pipeline cannot tear, and where backward ops go."""

import pytest

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.topology import Device, Topology
from dlplacer.files.load import load_topology
from dlplacer.planning.pipeline.blocks import blocks_of
from dlplacer.planning.pipeline.pipeline_workload import PipelineWorkload


def names(graph: OpGraph, groups: tuple[tuple[int, ...], ...]) -> list[list[str]]:
    return [[graph.ops[op].id for op in group] for group in groups]


# Blocks {w0 f0}, {w1 f1}, {w2 f2}. b1 is at f1, whose gradient goes on to d0, at w0.
@pytest.mark.parametrize(
    ("reads", "block"),
    [
        (("f2", "b1"), 1),  # what it reads from the forward pass is at 2, the gradient at 1
        (("f2", "d0"), 0),
        (("b1", "d0"), 0),  # gradients alone: the earliest
        (("f0", "b1"), 0),
    ],
)
def test_a_backward_op_is_never_behind_a_gradient_that_it_reads(reads: tuple[str, ...], block: int) -> None:
    ops = [op for at in range(3) for op in (weight(at), Op(f"f{at}", "op", 1.0, phase="forward"))]
    ops += [Op(name, "op", 1.0, phase="backward") for name in ("b1", "d0", "own")]
    ops.append(Op("w0.grad", "gradient", 0.0, phase="backward", colocate="w0"))
    pairs = ("w0 f0", "f0 f1", "w1 f1", "f1 f2", "w2 f2", "f1 b1", "b1 d0", "d0 w0.grad")
    more = tuple(Edge(name, "own", 4, tensor=f"{name} read") for name in reads)
    graph = OpGraph(tuple(ops), (*(Edge(*pair.split(), 4) for pair in pairs), *more))
    homes = names(graph, blocks_of(graph).backward)
    assert ["own" in home for home in homes].index(True) == block


def weight(at: int) -> Op:
    return Op(f"w{at}", "parameter", 0.0, phase="forward", colocate=f"w{at}")


def test_a_weight_goes_with_what_reads_its_cast() -> None:
    ops = (
        *(op for at in (0, 1) for op in (weight(at), Op(f"c{at}", "aten._to_copy", 1.0, phase="forward"))),
        *(Op(f"f{at}", "aten.mm", 9.0, phase="forward") for at in (0, 1)),
    )
    pairs = ("w0 c0", "w1 c1", "c0 f0", "f0 f1", "c1 f1")
    graph = OpGraph(ops, tuple(Edge(*pair.split(), 4) for pair in pairs))
    assert names(graph, blocks_of(graph).members) == [["w0", "c0", "f0"], ["w1", "c1", "f1"]]


def test_stages_of_a_captured_transformer_under_autocast_hold_their_products() -> None:
    import torch
    from torch import nn
    from torch.nn import functional

    import dlplacer as dp
    from dlplacer.planning.pipeline.pipeline_search import plan_pipeline

    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 4)
    values = torch.randn(8, 16, 32)
    graph = dp.capture(dp.Job(layers, (values,), (values,), functional.mse_loss, autocast="bfloat16"))
    plan = plan_pipeline(graph, load_topology("dgx1-v100-4gpu"), stages=4, micro_batches=4, schedule="1f1b")
    for stage in plan.stages:
        own = [graph.op(name) for name in stage.ops]
        read = {edge.target for op in own if op.kind == "aten._to_copy" for edge in graph.edges_from[op.id]}
        products = [op for op in own if op.kind in ("aten.mm", "aten.addmm", "aten.bmm")]
        assert products
        assert {op.id for op in products} <= read
        # activations of 2 samples, and the sum that the next norm adds them to
        assert stage.sends_bytes <= 2 * (2 * 16 * 32 * 4)


def test_a_micro_batch_reads_the_whole_weight() -> None:
    """1000 bytes of weight and 1000 of data: a quarter of the batch moves 1250 of 2000 bytes."""
    ops = (
        Op("w", "parameter", 0.0, weight_bytes=1000),
        Op("x", "input", 0.0),
        Op("f", "mm", bytes_accessed=2000, outputs=()),
    )
    graph = OpGraph(ops, (Edge("w", "f", 1000), Edge("x", "f", 500)))
    topology = Topology((Device("d", "own", flops_per_s=1.0, memory_bytes_per_s=1000 / 0.7),), (), ())
    costs = PipelineWorkload(graph, topology)
    assert costs.times("own", 1) == pytest.approx([0, 0, 2.0])
    assert costs.times("own", 4) == pytest.approx([0, 0, 1.25])
