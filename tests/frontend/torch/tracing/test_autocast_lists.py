"""Autocast with CUDA's lists on the CPU, against torch's own autocast on stand-ins of CUDA tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dlplacer.frontend import Job
from dlplacer.frontend.torch.capture import capture_job, default_rewrites
from dlplacer.frontend.torch.tracing.autocast_lists import cuda_lists, lists


def test_no_op_with_a_kernel_for_autocast_on_cuda_is_missing() -> None:
    # cuDNN's convolutions are no ops of a model; the rest is listed, or refused.
    others = {"binary_cross_entropy", "cudnn_convolution", "cudnn_convolution_transpose"}
    names = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    cast = {name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA")}
    assert cast - frozenset().union(*lists().values()) == others


class Dtypes(TorchDispatchMode):
    """Notes the dtypes of all results, by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[torch.dtype]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        dtypes = [leaf.dtype for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        # On CUDA the softmax of half precision casts by itself.
        if dtypes and func not in (torch.ops.aten._to_copy.default, torch.ops.aten.empty.memory_format):
            self.found.append((str(func), dtypes))
        return made


@contextmanager
def autocast(device_type: str) -> Iterator[None]:
    """Without torch.autocast, which switches itself off where there is no device."""
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, torch.bfloat16)
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device_type, False)
        torch.set_autocast_cache_enabled(True)


CALLS: dict[str, Callable[..., Any]] = {
    "linear": functional.linear,
    "softmax": lambda x, w: torch.softmax(functional.linear(x, w), -1),
    "layer norm": lambda x, w: functional.layer_norm(x @ w, (8,)),
    "sum": lambda x, w: (x @ w).sum(),
    "sum in a dtype": lambda x, w: (x @ w).sum(0, dtype=torch.float64),
    "cat": lambda x, w: torch.cat([x @ w, x]),
    "power": lambda x, w: (x @ w).abs().pow(2.0).rsqrt().exp(),
    "norm": lambda x, w: torch.norm(x @ w, dim=1),
    "loss": lambda x, w: functional.mse_loss(x @ w, x),
    "scatter": lambda x, w: (x @ w).scatter_add(0, torch.zeros(8, 8, dtype=torch.int64, device=x.device), x),
    "addcmul": lambda x, w: torch.addcmul(x @ w, x @ w, x @ w),
    "einsum": lambda x, w: torch.einsum("ij,kj->ik", x, w),
    "pool": lambda x, w: functional.avg_pool2d((x @ w).unsqueeze(0), 2),
    "resized": lambda x, w: functional.interpolate((x @ w).view(1, 1, 8, 8), scale_factor=2.0, mode="bilinear"),
    "integers": lambda x, w: torch.cumsum(torch.ones(3, dtype=torch.int64, device=x.device), 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_ops_run_in_the_dtypes_of_autocast_on_cuda(name: str) -> None:
    with FakeTensorMode(), torch.no_grad(), autocast("cuda"), Dtypes() as theirs:
        CALLS[name](torch.empty(8, 8, device="cuda"), torch.empty(8, 8, device="cuda"))
    with cuda_lists(), FakeTensorMode(), torch.no_grad(), autocast("cpu"), Dtypes() as ours:
        CALLS[name](torch.empty(8, 8), torch.empty(8, 8))
    assert ours.found == theirs.found
    assert ours.found


def test_outside_the_cpus_lists_are_back() -> None:
    def made() -> torch.dtype:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.softmax(torch.ones(2, 2) @ torch.ones(2, 2), 1).dtype

    assert made() == torch.bfloat16
    with cuda_lists():
        assert made() == torch.float32
    assert made() == torch.bfloat16


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.head = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.fc(x)).softmax(-1))


@pytest.mark.parametrize(("device_type", "softmax"), [("cpu", "bfloat16"), ("cuda", "float32")])
def test_a_capture_has_the_dtypes_of_its_device_type(device_type: str, softmax: str) -> None:
    x, y = torch.randn(4, 8), torch.randint(3, (4,))
    job = Job(Block(), (x,), (y,), functional.cross_entropy, autocast="bfloat16", autocast_on=device_type)
    graph = capture_job(job, default_rewrites(job=job)).graph
    (op,) = [op for op in graph.ops if op.kind == "aten._softmax"]
    assert op.outputs[0].dtype == softmax
    assert all(op.outputs[0].dtype == "bfloat16" for op in graph.ops if op.kind in ("aten.mm", "aten.addmm"))
