"""What a captured graph looks like, on models small enough to read."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from frontend.torch.reading import kinds, of_kind, readers, sizes_into
from frontend.torch.small_models import BUILDERS, Calls, build, graph_of
from torch import nn

from dlplacer.frontend import Job, capture
from dlplacer.frontend.torch.capture import capture_job, default_rewrites


def test_a_linear_layer_and_its_loss() -> None:
    graph = graph_of("linear")
    assert [(op.id, op.kind, op.phase) for op in graph.ops] == [
        ("weight", "parameter", "forward"),
        ("bias", "parameter", "forward"),
        ("args[0]", "input", "forward"),
        ("targets[0]", "input", "forward"),
        ("tangent", "tangent", "backward"),
        ("addmm", "aten.addmm", "forward"),
        ("_log_softmax", "aten._log_softmax", "forward"),
        ("nll_loss_forward", "aten.nll_loss_forward", "forward"),
        ("nll_loss_backward", "aten.nll_loss_backward", "backward"),
        ("_log_softmax_backward_data", "aten._log_softmax_backward_data", "backward"),
        ("mm", "aten.mm", "backward"),
        ("sum_1", "aten.sum", "backward"),
        ("weight.grad", "gradient", "backward"),
        ("bias.grad", "gradient", "backward"),
    ]
    # 4 rows of 8 features to 5 classes in float32, int64 labels.
    assert sizes_into(graph, "addmm") == {"bias": 20, "args[0]": 128, "weight": 160}
    assert sizes_into(graph, "nll_loss_backward") == {
        "tangent": 4,
        "_log_softmax": 80,
        "targets[0]": 32,
        "nll_loss_forward": 4,
    }
    addmm = graph.op("addmm")
    assert (addmm.flops, addmm.bytes_accessed, addmm.dtype, addmm.output_bytes) == (2 * 4 * 8 * 5, 388, "float32", 80)
    assert [(spec.shape, spec.dtype, spec.bytes) for spec in addmm.outputs] == [((4, 5), "float32", 80)]
    assert addmm.attrs["target"] == "aten.addmm.default"
    assert addmm.attrs["args"] == [{"tensor": "primals_2"}, {"tensor": "primals_3"}, {"tensor": "t"}]


@pytest.mark.parametrize("name", BUILDERS)
def test_every_tensor_of_the_module_is_one_op_with_its_bytes(name: str) -> None:
    job, graph = build(name), graph_of(name)
    for kind, tensors in (("parameter", job.module.parameters()), ("buffer", job.module.buffers())):
        expected = sorted(tensor.numel() * tensor.element_size() for tensor in tensors)
        found = [graph.op(op) for op in of_kind(graph, kind) if not op.startswith("(loss)")]
        assert sorted(op.weight_bytes for op in found) == expected
        assert all(op.time_s == 0 and op.colocate == op.id for op in found)


@pytest.mark.parametrize("name", BUILDERS)
def test_gradients_and_new_buffers_end_where_their_tensors_are(name: str) -> None:
    graph = graph_of(name)
    for op in graph.ops:
        if op.kind in ("gradient", "mutation"):
            assert op.colocate in graph.index
            assert graph.op(op.colocate).colocate == op.colocate
            assert op.id == op.colocate + {"gradient": ".grad", "mutation": ".new"}[op.kind]
            assert not graph.edges_from[op.id]
    with_gradient = {op.colocate for op in graph.ops if op.kind == "gradient"}
    for op in of_kind(graph, "parameter"):
        assert graph.op(op).gradient_bytes == (graph.op(op).weight_bytes if op in with_gradient else 0)


def test_views_are_folded_and_charge_what_travels() -> None:
    graph = graph_of("views")
    assert not any(
        kind in str(op.kind) for op in graph.ops for kind in ("view", "slice.", "expand", "getitem", "detach")
    )
    # row: (1, 8) expanded to (4, 8), of which 4 columns are read: 4 floats travel. x[:2] is half of x.
    assert sizes_into(graph, "cos") == {"row": 16}
    assert sizes_into(graph, "exp") == {"args[0]": 64}
    assert [(edge.source, edge.bytes) for edge in graph.edges_into["stack"]] == [("args[0]", 32)] * 4
    assert graph.op("row").weight_bytes == 32
    # The whole of x, its first half and its four rows are tensors of their own.
    assert len({edge.tensor for edge in graph.edges_from["args[0]"]}) == 1 + 1 + 4


def test_edges_name_the_output_that_they_read() -> None:
    graph = graph_of("convolutions")
    norm = "_native_batch_norm_legit_functional"
    by_output = {(edge.output, edge.target) for edge in graph.edges_from[norm] if edge.bytes}
    assert (0, "relu") in by_output
    assert {output for output, _ in by_output} >= {0, 1, 2, 3, 4} - {0} & {3}
    pool = graph.op("max_pool2d_with_indices")
    assert [spec.dtype for spec in pool.outputs] == ["float32", "int64"]
    assert {(edge.output, edge.target) for edge in graph.edges_from[pool.id]} >= {
        (0, "convolution_1"),
        (1, "max_pool2d_with_indices_backward_1"),
    }


def test_the_backward_of_a_convolution_is_split_or_kept_whole() -> None:
    job = build("convolutions")
    split, whole = capture(job), capture(job, whole_backward=True)
    assert kinds(whole)["aten.convolution_backward"] == 4
    # The first convolution is called twice, and both times its input needs no gradient: nothing to split.
    assert kinds(split)["aten.convolution_backward"] == 6
    inputs, weights = split.op("convolution_backward_input"), split.op("convolution_backward_weight")
    assert inputs.attrs["args"][-1] == [True, False, False]
    assert weights.attrs["args"][-1] == [False, True, True]
    assert [spec.bytes for spec in inputs.outputs] == [1152, 0, 0]
    assert [spec.bytes for spec in weights.outputs] == [0, 256, 32]
    assert readers(split, weights.id) == {"b.weight.grad", "b.bias.grad"}
    assert sum(op.flops for op in split.ops) == sum(op.flops for op in whole.ops)


@pytest.mark.parametrize(("name", "join"), [("transformer", "aten.stack"), ("attention", "aten.cat")])
def test_the_gradients_of_all_parts_of_a_tensor_are_joined_and_not_added(name: str, join: str) -> None:
    backward = Counter(op.kind for op in graph_of(name).ops if op.phase == "backward")
    assert backward[join] == 1
    assert not backward["aten.select_backward"] + backward["aten.slice_backward"]


@pytest.mark.parametrize(
    ("name", "parameters"), [("tied late", ["head.weight", "again.weight", "again.bias"]), ("unused", ["a", "b"])]
)
def test_a_tensor_with_several_names_is_one_op(name: str, parameters: list[str]) -> None:
    if name == "unused":
        module = Calls(lambda self, x: x * self.a, a=nn.Parameter(torch.ones(3)), b=nn.Parameter(torch.ones(3)))
        module.c = module.b
        job = Job(module, (torch.ones(3),), (), torch.sum)
    else:
        job = build(name)
    graph = capture(job)
    assert of_kind(graph, "parameter") == parameters


def test_new_values_of_buffers_wait_for_all_readers_of_the_old_ones() -> None:
    graph = graph_of("counting")
    assert of_kind(graph, "mutation") == ["calls.new", "mean.new"]
    assert sizes_into(graph, "mean.new") == {"add_1": 32, "mul": 0}
    assert sizes_into(graph, "calls.new") == {"add": 8}
    assert graph.op("calls").weight_bytes == 8


def test_updates_read_weight_and_gradient_and_wait_for_all_readers() -> None:
    for kind, states in (("sgd", 0), ("momentum", 1), ("adam", 2)):
        graph = capture(replace(build("linear"), optimizer=kind))
        update = graph.op("weight.update")
        assert (update.kind, update.phase, update.colocate) == (f"update.{kind}", "optimizer", "weight")
        assert update.state_bytes == states * 160
        assert update.bytes_accessed == (3 + 2 * states) * 160
        assert update.flops == (2 + 4 * states) * 40
        assert sizes_into(graph, "weight.update") == {"weight": 160, "mm": 160, "addmm": 0}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_draws_only_for_dropout(dropout: float) -> None:
    def forward(self: Calls, x: torch.Tensor) -> torch.Tensor:
        heads = self.project(x).unflatten(-1, (2, 4)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=dropout).sum()

    job = Job(Calls(forward, project=nn.Linear(8, 8)), (torch.randn(2, 5, 8),))
    codes = capture_job(job, default_rewrites()).executable.codes.values()
    assert any(code.random for code in codes) == (dropout > 0)
