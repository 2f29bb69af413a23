"""Batch norm under micro-batches, and what `plan_pipeline` says where nothing can be tried."""

from dataclasses import replace

import pytest
from planning.pipeline.graphs import chain, devices

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.planning.pipeline.batch_norm_warnings import mixing_warnings
from dlplacer.planning.pipeline.pipeline_search import plan_pipeline


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
        ("aten.native_batch_norm", [], True),
        ("aten._native_batch_norm_legit_no_training", TENSORS, False),
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


def test_interleaved_passes_over_micro_batches_that_make_no_rounds() -> None:
    graph = chain([1, 1, 1, 1, 1, 1], bytes_=0)
    best = plan_pipeline(graph, devices(["x"] * 3), schedule="interleaved")
    assert best.micro_batches % len(best.devices) == 0
    fixed = plan_pipeline(graph, devices(["x"] * 3), schedule="interleaved", micro_batches=4)
    assert (fixed.micro_batches, len(fixed.devices)) == (4, 2)
    for stages in (3, None):
        with pytest.raises(InputError, match=r"interleaved: 5 micro-batches on \d devices; use a multiple of \d"):
            plan_pipeline(graph, devices(["x"] * 3), schedule="interleaved", micro_batches=5, stages=stages)
