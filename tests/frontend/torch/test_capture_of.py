"""Captures of the same model in many forms and under many circumstances."""

import pytest
import torch
from frontend.torch.reading import kinds
from frontend.torch.small_models import build, graph_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from dlplacer.files.formats import first_difference
from dlplacer.frontend import Job, capture


# With warm caches torch takes two results of the LSTM's backward for two tensors, with cold ones for one.
@pytest.mark.parametrize("name", ["recurrent", "convolutions", "counting up", "keywords", "tied late"])
def test_two_captures_are_equal(name: str) -> None:
    first, second = graph_of(name), capture(build(name, seed=1))
    assert first_difference(first, second) is None
    assert first.structure_sha256 == second.structure_sha256
    assert [op.id for op in first.ops] == [op.id for op in second.ops]


def test_stand_ins_on_the_meta_device_give_the_same_graph() -> None:
    x, labels = torch.randn(4, 8), torch.randint(5, (4,))

    def network(device: str | None = None) -> nn.Module:
        return nn.Sequential(
            nn.Linear(8, 8, device=device), nn.BatchNorm1d(8, device=device), nn.Linear(8, 5, device=device)
        )

    real = capture(Job(network(), (x,), (labels,), functional.cross_entropy))
    meta = capture(Job(network("meta"), (x.to("meta"),), (labels.to("meta"),), functional.cross_entropy))
    with FakeTensorMode():
        fake_job = Job(network(), (torch.randn(4, 8),), (torch.randint(5, (4,)),), functional.cross_entropy)
    fake = capture(fake_job)
    assert real.structure_sha256 == meta.structure_sha256 == fake.structure_sha256


def test_inference_graphs_have_a_forward_pass_alone() -> None:
    job = build("convolutions")
    graph = capture(Job(job.module, job.args, mode="infer"))
    assert {op.phase for op in graph.ops} == {"forward"}
    assert not kinds(graph).keys() & {"gradient", "mutation", "tangent"}
    assert all(op.gradient_bytes == 0 for op in graph.ops)
    assert kinds(graph)["aten._native_batch_norm_legit_no_training"] == 3
    assert capture(job.module, job.args).structure_sha256 == graph.structure_sha256


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("decomposed", [False, True])
def test_exported_programs(decomposed: bool) -> None:
    job = build("convolutions")
    module = job.module.eval()
    exported = torch.export.export(module, job.args)
    if decomposed:
        exported = exported.run_decompositions()
    graph, direct = capture(exported), capture(module, job.args)
    assert kinds(graph)["aten.convolution"] == kinds(direct)["aten.convolution"]
    assert sum(op.flops for op in graph.ops) == sum(op.flops for op in direct.ops)
    assert sorted(op.weight_bytes for op in graph.ops) == sorted(op.weight_bytes for op in direct.ops)
    assert capture(exported, job.args).structure_sha256 == graph.structure_sha256
