"""Batch norm under micro-batches, and what `plan_pipeline` says where nothing can be tried."""

from dataclasses import replace

import pytest
from planning.pipeline.graphs import chain, devices

from dlplacer.core.graph import OpGraph
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline
from dlplacer.planning.pipeline.pipeline_workload import mixing_warnings


def normed(kind: str, *arguments: object) -> OpGraph:
    """A chain of four ops whose second is a batch norm."""
    graph = chain([1, 1, 1, 1], bytes_=0)
    ops = tuple(
        replace(op, kind=kind, module="block.bn", attrs={"args": list(arguments)}) if op.id == "f1" else op
        for op in graph.ops
    )
    return replace(graph, ops=ops)


TENSORS = [{"tensor": "x"}] * 5


@pytest.mark.parametrize(
    ("kind", "arguments", "warns"),
    [
        ("aten._native_batch_norm_legit_functional", [*TENSORS, True, 0.1, 1e-5], True),
        ("aten._native_batch_norm_legit_functional", [*TENSORS, False, 0.1, 1e-5], False),
        ("aten.native_group_norm", TENSORS, False),
    ],
)
def test_a_pipeline_says_that_batch_norm_sees_micro_batches(kind: str, arguments: list[object], warns: bool) -> None:
    graph = normed(kind, *arguments)
    plan = plan_pipeline(graph, devices(["x", "x"]), stages=2, micro_batches=4, schedule="1f1b")
    assert bool(plan.warnings) == warns
    assert plan.to_dict()["warnings"] == list(plan.warnings)
    if warns:
        assert plan.warnings[0].startswith("batch norm 'block.bn' will see one of 4 micro-batches at a time")
    assert mixing_warnings(graph, 1) == ()
