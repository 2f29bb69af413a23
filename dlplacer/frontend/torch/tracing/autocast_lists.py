"""Autocast with CUDA's lists of ops while a step is traced on the CPU, which has other lists.

Adapter to private APIs of torch 2.11 to 2.13: the autocast dispatch key of CPUs, and the header with the lists.
"""

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dlplacer.core.errors import CaptureError
from dlplacer.frontend.torch.nodes import operators

CUDA_AUTOCAST = "cuda-autocast"
"""Name of the rewrite that traces a step with CUDA's lists."""

_HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
_NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}


@functools.cache
def lists() -> dict[str, frozenset[str]]:
    """Torch's name of a policy → its ops on CUDA, read from torch's header."""
    if not _HEADER.is_file():
        raise CaptureError(f"{_HEADER}, which lists the ops of autocast on CUDA, is missing; install torch by pip")
    found = {"FP32_APPEND_DTYPE": frozenset(_NORMS)}
    for policy, body in re.findall(r"#define AT_FORALL_(\w+)\(_\)(.*?)\n\n", _HEADER.read_text(), re.DOTALL):
        entries = re.findall(r"_\(([\w, ]+)\)", body)
        found[policy] = frozenset(entry.replace(" ", "").replace(",", ".") for entry in entries)
    return found


_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


@contextlib.contextmanager
def cuda_lists() -> Iterator[None]:
    """Make torch.autocast on the CPU cast as on CUDA within the context."""
    library: Any = torch.library.Library("aten", "IMPL", "AutocastCPU")  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            # Torch warns that kernels are replaced, which is intended.
            warnings.simplefilter("ignore")
            for name, kernel in _kernels():
                library.impl(name, kernel)
        yield
    finally:
        library._destroy()


def _kernels() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Op → its autocast kernel, for all ops whose kernel differs from the CPU's."""

    def widest(args: Any) -> torch.dtype:
        cast = {leaf.dtype for leaf in pytree.tree_leaves(args) if _is_cast(leaf)}
        return torch.float32 if torch.float32 in cast else torch.get_autocast_dtype("cpu")

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "binary_cross_entropy is unsafe to autocast on CUDA; use binary_cross_entropy_with_logits, or leave "
            "autocast around it"
        )

    policies = lists()
    dtypes: dict[str, Callable[[Any], torch.dtype]] = {
        "LOWER_PRECISION_FP": lambda args: torch.get_autocast_dtype("cpu"),
        "FP32": lambda args: torch.float32,
        "PROMOTE": widest,
    }
    for policy, dtype_for in dtypes.items():
        for name in policies[policy]:
            # The CPU's own kernel caches the casts of weights, so each is cast once.
            if policy != "LOWER_PRECISION_FP" or not _is_cast_on_cpu(name):
                yield name, _cast_to(next(iter(operators(name))), dtype_for)
    for name, other in {**{name: name for name in policies["FP32_SET_OPT_DTYPE"]}, **_NORMS}.items():
        yield name, _with_float32_result(*operators(name), *operators(other))
    yield "binary_cross_entropy", refuse
    listed = frozenset().union(*policies.values())
    for full in torch._C._dispatch_get_all_op_names():
        name = full.removeprefix("aten::")
        if full != name and name not in listed and name != "binary_cross_entropy" and _is_cast_on_cpu(name):
            yield name, torch.library.fallthrough_kernel


def _is_cast_on_cpu(name: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU"))


def _is_cast(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast_to(operator: Any, dtype_for: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    """A function that casts the arguments and calls the operator."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY):
            dtype = dtype_for((args, kwargs))
            args, kwargs = pytree.tree_map(lambda leaf: leaf.to(dtype) if _is_cast(leaf) else leaf, (args, kwargs))
            return operator(*args, **kwargs)

    return call


def _with_float32_result(operator: Any, other: Any) -> Callable[..., Any]:
    """A function that passes ``dtype=float32`` to the operator, unless the caller chose a dtype."""

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
