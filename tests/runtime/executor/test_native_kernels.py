"""Torch's own bindings call the operators that they stand in for."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dlplacer.runtime.executor.segment_graph import NATIVE

aten = torch.ops.aten
x, y, index = torch.randn(4, 6), torch.randn(6, 5), torch.tensor([0, 2])
images, weight = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
query = torch.randn(1, 2, 3, 4)
ARGUMENTS: dict[Any, tuple[Any, ...]] = {
    aten._log_softmax.default: (x, 1, False),
    aten._log_softmax_backward_data.default: (x, x, 1, torch.float32),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (query, query, query, 0.0, True),
    aten._softmax.default: (x, 1, False),
    aten._softmax_backward_data.default: (x, x, 1, torch.float32),
    aten.add.Tensor: (x, x),
    aten.addmm.default: (torch.randn(5), x, y),
    aten.avg_pool2d.default: (images, [3, 3], [1, 1], [1, 1]),
    aten.bmm.default: (x[None], y[None]),
    aten.cat.default: ([x, x], 1),
    aten.clone.default: (x,),
    aten.constant_pad_nd.default: (x, [1, 2], 0.5),
    aten.convolution.default: (images, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    aten.div.Tensor: (x, 3),
    aten.embedding.default: (y, index),
    aten.exp.default: (x,),
    aten.expand.default: (x, [2, 4, 6]),
    aten.flip.default: (x, [1]),
    aten.gather.default: (x, 0, index[None]),
    aten.gelu.default: (x,),
    aten.index_select.default: (x, 0, index),
    aten.log.default: (x.abs(),),
    aten.masked_fill.Scalar: (x, x > 0, -1.5),
    aten.max_pool2d_with_indices.default: (images, [3, 3], [2, 2]),
    aten.maximum.default: (x, -x),
    aten.mean.dim: (x, [-1], True),
    aten.minimum.default: (x, -x),
    aten.mm.default: (x, y),
    aten.mul.Tensor: (x, x),
    aten.native_layer_norm.default: (x, [6], None, None, 1e-5),
    aten.neg.default: (x,),
    aten.permute.default: (x, [1, 0]),
    aten.pow.Tensor_Scalar: (x, 2),
    aten.relu.default: (x,),
    aten.rsqrt.default: (x.abs(),),
    aten.select.int: (x, 0, 1),
    aten.sigmoid.default: (x,),
    aten.silu.default: (x,),
    aten.split_with_sizes.default: (x, [1, 3], 0),
    aten.sqrt.default: (x.abs(),),
    aten.squeeze.dim: (x[None], 0),
    aten.stack.default: ([x, x], 1),
    aten.sub.Tensor: (x, x),
    aten.sum.dim_IntList: (x, [0], True),
    aten.t.default: (x,),
    aten.tanh.default: (x,),
    aten.transpose.int: (x, 0, 1),
    aten.unbind.int: (x, 1),
    aten.unsafe_split.Tensor: (x, 2, 1),
    aten.unsqueeze.default: (x, 0),
    aten.view.default: (x, [2, 12]),
    aten.where.self: (x > 0, x, -x),
}


class Heard(TorchDispatchMode):
    """Writes down which operators are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("operator", NATIVE, ids=str)
def test_the_binding_calls_the_operator(operator: Any) -> None:
    arguments = ARGUMENTS[operator]
    with torch.no_grad(), Heard() as heard:
        found = NATIVE[operator](*arguments)
    assert heard.calls == [operator]
    expected = operator(*arguments)
    for one, other in zip(
        *[each if isinstance(each, (tuple, list)) else [each] for each in (found, expected)], strict=True
    ):
        if not isinstance(one, torch.Tensor):
            assert one == other
            continue
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
        assert one.dtype == other.dtype
