"""The ops that torch.autocast casts on CUDA, while a step is traced on the CPU, whose lists are others.

Adapter to private APIs of torch: the dispatch key of autocast on CPUs. Known to work with torch 2.11 to 2.13;
`tests/frontend/torch/tracing/test_autocast_lists.py` compares the table with the header in which torch has its own.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dlplacer.frontend.torch.nodes import operators

CUDA_AUTOCAST = "cuda-autocast"
"""Name of the rewrite that traces a step with CUDA's lists."""

_LOWER = """
_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
_scaled_dot_product_flash_attention scaled_dot_product_attention
"""
_FLOAT32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
_upsample_bicubic2d_aa
"""
_FLOAT32_RESULT = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
_PROMOTED = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
_NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}

LISTS = {
    "lower_precision_fp": frozenset(_LOWER.split()),
    "fp32": frozenset(_FLOAT32.split()),
    "fp32_set_opt_dtype": frozenset(_FLOAT32_RESULT.split()),
    "promote": frozenset(_PROMOTED.split()),
    "fp32_append_dtype": frozenset(_NORMS),
}
"""Torch's name of a policy → the ops under it on CUDA."""

_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


@contextlib.contextmanager
def cuda_lists() -> Iterator[None]:
    """While it lasts, torch.autocast on the CPU casts as it does on CUDA."""
    library: Any = torch.library.Library("aten", "IMPL", "AutocastCPU")  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            # Torch warns that kernels are replaced, which is meant.
            warnings.simplefilter("ignore")
            for name, kernel in _kernels():
                library.impl(name, kernel)
        yield
    finally:
        library._destroy()


def _kernels() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Op → its kernel for autocast, for all ops with another one than on the CPU."""
    listed = frozenset().union(*LISTS.values())
    for name in LISTS["lower_precision_fp"]:
        # The CPU's own kernel keeps the casts of weights, which are then cast once.
        if not _is_cast_on_cpu(name):
            yield name, _cast_to(_operator(name), lambda args: torch.get_autocast_dtype("cpu"))
    for name in LISTS["fp32"]:
        yield name, _cast_to(_operator(name), lambda args: torch.float32)
    for name in LISTS["promote"]:
        yield name, _cast_to(_operator(name), _widest)
    for name in LISTS["fp32_set_opt_dtype"]:
        yield name, _with_float32_result(_operator(name), _operator(name))
    for name, other in _NORMS.items():
        yield name, _with_float32_result(_operator(name), _operator(other))
    yield "binary_cross_entropy", _refuse
    for full in torch._C._dispatch_get_all_op_names():
        name = full.removeprefix("aten::")
        if full != name and name not in listed and name != "binary_cross_entropy" and _is_cast_on_cpu(name):
            yield name, torch.library.fallthrough_kernel


def _is_cast_on_cpu(name: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU"))


def _operator(name: str) -> Any:
    (found,) = operators(name)
    return found


def _is_cast(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _widest(args: Any) -> torch.dtype:
    cast = [leaf for leaf in pytree.tree_leaves(args) if _is_cast(leaf)]
    return torch.float32 if any(leaf.dtype == torch.float32 for leaf in cast) else torch.get_autocast_dtype("cpu")


def _cast_to(operator: Any, dtype_for: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    """The operator on arguments that are cast."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            dtype = dtype_for((args, kwargs))
            args, kwargs = pytree.tree_map(lambda leaf: leaf.to(dtype) if _is_cast(leaf) else leaf, (args, kwargs))
            return operator(*args, **kwargs)

    return call


def _with_float32_result(operator: Any, other: Any) -> Callable[..., Any]:
    """An operator that computes in float32 and says so by ``dtype``, unless the caller chose one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            if not _is_cast(args[0]):
                return operator(*args, **kwargs)
            names = [argument.name for argument in other._schema.arguments if not argument.kwarg_only]
            given = dict(zip(names, args, strict=False)) | kwargs
            if given.get("dtype") is None:
                given["dtype"] = torch.float32
            return other(**given)

    return call


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "binary_cross_entropy is unsafe to autocast on CUDA; use binary_cross_entropy_with_logits, or leave autocast "
        "around it"
    )
