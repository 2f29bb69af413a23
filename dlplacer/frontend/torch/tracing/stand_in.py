"""The environment of a trace: data-free CPU stand-ins for tensors, and torch without the caller's modes."""

import contextlib
import functools
import logging
import sys
import sysconfig
import types
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dlplacer.frontend.torch.nodes import operators

_LEAVES = (torch.Tensor, str, bytes, int, float, type(None), type, types.ModuleType)
_CONTAINERS: tuple[Any, ...] = (OrderedDict, dict, list, deque, set)
_HOLDERS = ("types", "collections", "argparse")

TRACED_ON = torch.device("cpu")
"""The device of stand-ins during a trace, whichever device the step will run on."""
# Fake tensors on a GPU end the process: without a GPU, a wheel aborts in the first backward ("terminate called after
# throwing an instance of 'c10::Error'"), which no handler can catch.


def fake_tensor(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """The stand-in of a tensor that is real, on the meta device, or itself a stand-in of another mode."""
    with mode:
        # It has the tensor's strides, because legal views and traced kernels depend on them.
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=TRACED_ON)


@contextlib.contextmanager
def stood_in(roots: Iterable[Any], stand_ins: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Replace the tensors reached from modules and functions by stand-ins, and restore everything at the end.

    A capture runs on the user's own objects, because closures, hooks and weak references would not refer to copies.
    Changes of attributes, containers and variables are undone. Tensors without a stand-in are constants of the step,
    whose values decide the traced code; a constant without data counts as zeros.
    """
    undo: list[Callable[[], None]] = []
    seen: dict[int, Any] = {}
    waiting = list(roots)
    try:
        while waiting:
            value = waiting.pop()
            if not isinstance(value, _LEAVES) and id(value) not in seen:
                seen[id(value)] = value
                waiting += _entered(value, stand_ins, undo)
        yield
    finally:
        for step in reversed(undo):
            step()


def _entered(value: Any, stand_ins: Mapping[int, torch.Tensor], undo: list[Callable[[], None]]) -> list[Any]:
    """The values that a value refers to; its tensors are replaced by stand-ins."""
    if isinstance(value, types.FunctionType):
        return [] if is_installed(value.__module__ or "") else _variables(value, undo)
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, _CONTAINERS):
        return _filled_container(value, stand_ins, undo)
    kind = type(value)
    # Enter the user's classes and plain holders, but no classes of installed packages.
    theirs = kind.__module__ in sys.stdlib_module_names or is_installed(kind.__module__)
    if theirs and kind.__module__ not in _HOLDERS and not isinstance(value, nn.Module):
        return []
    slots = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    listed = [name for names in slots for name in ((names,) if isinstance(names, str) else names)]
    names = [name for name in listed if not name.startswith("__") and hasattr(value, name)]
    for name in names:
        undo.append(functools.partial(setattr, value, name, getattr(value, name)))
    methods = () if is_installed(kind.__module__) else vars(kind).values()
    attributes = [value.__dict__] if type(getattr(value, "__dict__", None)) is dict else []
    return [*attributes, *(getattr(value, name) for name in names), *methods]


@functools.cache
def is_installed(module: str) -> bool:
    """True if a module belongs to an installed package or to Python: its globals are not the user's state."""
    path = PurePath(getattr(sys.modules.get(module), "__file__", None) or "")
    named = any(name in path.parts for name in ("site-packages", "dist-packages"))
    return named or path.is_relative_to(sysconfig.get_path("stdlib"))


def _variables(function: types.FunctionType, undo: list[Callable[[], None]]) -> list[Any]:
    """The closure variables, defaults and globals that a function reads."""
    space = function.__globals__
    used = {name: space[name] for name in function.__code__.co_names if name in space}
    undo.append(functools.partial(space.update, used))
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    found = [*defaults, *filter(None, (function.__kwdefaults__, function.__dict__)), *used.values()]
    for cell in function.__closure__ or ():
        # An empty cell has no contents.
        with contextlib.suppress(ValueError):
            found.append(cell.cell_contents)
            undo.append(functools.partial(setattr, cell, "cell_contents", cell.cell_contents))
    return found


def _filled_container(value: Any, stand_ins: Mapping[int, torch.Tensor], undo: list[Callable[[], None]]) -> list[Any]:
    # Use the builtin class's methods: a subclass's own may have side effects.
    base = next(kind for kind in _CONTAINERS if isinstance(value, kind))
    before = list(base.items(value)) if issubclass(base, dict) else list(value)

    def restore() -> None:
        base.clear(value)
        (base.extend if base in (list, deque) else base.update)(value, before)

    undo.append(restore)
    if base is not set:
        for place, own in before if issubclass(base, dict) else enumerate(before):
            new = own
            if isinstance(own, weakref.ref):
                target = stand_ins.get(id(own()))
                new = own if target is None else weakref.ref(target)
            elif isinstance(own, torch.Tensor):
                new = stand_ins.get(id(own), torch.zeros(own.shape, dtype=own.dtype) if is_empty(own) else own)
            if new is not own:
                base.__setitem__(value, place, new)
    return [entry[1] for entry in before] if issubclass(base, dict) else before


def is_empty(value: Any) -> bool:
    """True for a tensor without data."""
    return isinstance(value, torch.Tensor) and (value.is_meta or isinstance(value, FakeTensor))


class WritesRefused(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses ops that write to real tensors, which lie outside the modules and have no stand-ins."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument, given in zip(func._schema.arguments, args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(given, torch.Tensor) and not isinstance(given, FakeTensor):
                raise RuntimeError(f"{func} writes to a tensor outside the modules")
        return func(*args, **(kwargs or {}))


MISJUDGED = operators("""
native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training _batch_norm_with_update_functional _batch_norm_no_update
native_batch_norm_backward batch_norm_backward channel_shuffle native_channel_shuffle max_unpool2d max_unpool3d
log_sigmoid_forward log_sigmoid_backward softplus softplus_backward elu elu_backward hardtanh_backward
hardsigmoid_backward hardswish_backward mse_loss_backward huber_loss_backward smooth_l1_loss_backward
_log_softmax _log_softmax_backward_data _softmax _softmax_backward_data
""")
"""Kernels whose strides torch's shape functions mispredict, found by a sweep over ops and layouts."""


@contextlib.contextmanager
def real_strides() -> Iterator[None]:
    """Run each kernel of `MISJUDGED` on a few real elements if an input's layout is not contiguous.

    The stand-in gets the strides of that result, in all modes including Dynamo's own. If a kernel cannot run on few
    elements, because size arguments do not fit them, it keeps the predicted strides.
    """
    dispatch = FakeTensorMode.dispatch

    def watched(mode: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = dispatch(mode, func, types, args, kwargs)
        if func not in MISJUDGED:
            return made
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if all(tensor.dim() < 2 or tensor.is_contiguous() for tensor in given):
            return made
        results, shape = pytree.tree_flatten(made)
        orders = _orders(func, *pytree.tree_flatten((args, dict(kwargs or {}))))
        for place, (result, order) in enumerate(zip(results, orders, strict=False)):
            if order is not None and isinstance(result, FakeTensor) and result.dim() > 1:
                sizes, what = (list(result.shape), list(order)), {"dtype": result.dtype, "device": result.device}
                laid: Any = dispatch(mode, torch.ops.aten.empty_permuted.default, (), sizes, what)
                results[place] = result if laid.stride() == result.stride() else laid
        return pytree.tree_unflatten(results, shape)

    with patch.object(FakeTensorMode, "dispatch", watched):
        yield


def _orders(func: Callable[..., Any], leaves: list[Any], nesting: Any) -> list[Sequence[int] | None]:
    """For each result, its dimensions from outermost to innermost in memory, from a real run on few elements."""
    sizes = sorted({size for leaf in leaves if isinstance(leaf, torch.Tensor) for size in leaf.shape if size > 1})
    small = {size: position for position, size in enumerate(sizes, 2)} | {0: 0, 1: 1}

    def example(leaf: Any) -> Any:
        """A small tensor of zeros with the same memory order; anything else unchanged."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = [small[size] for size in leaf.shape]
        held = [size if stride else 1 for size, stride in zip(shape, leaf.stride(), strict=True)]
        return torch.empty_permuted(held, _order(leaf), dtype=leaf.dtype).zero_().expand(shape)

    try:
        # The run is hidden from all modes.
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            args, kwargs = pytree.tree_unflatten([example(leaf) for leaf in leaves], nesting)
            results = pytree.tree_leaves(func(*args, **kwargs))
    except Exception:
        return []
    return [_order(result) if isinstance(result, torch.Tensor) else None for result in results]


def _order(tensor: torch.Tensor) -> list[int]:
    return sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride()[dim], dim))


def autocast_types() -> tuple[str, ...]:
    """Torch's device types for which the caller may have enabled autocast: the CPU and this build's accelerator."""
    accelerator = torch.accelerator.current_accelerator()
    return (TRACED_ON.type,) if accelerator is None else (TRACED_ON.type, accelerator.type)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Switch off the caller's inference mode, autocast and fake tensor mode, and all warnings.

    A traced graph enters and leaves autocast by calls; after a failure in between, autocast stays on. Autocast would
    then cache casts of weights forever, and plain training would read stale casts, so the nesting depth is restored.
    """
    kinds = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in autocast_types()}
    caches, depth = torch.is_autocast_cache_enabled(), torch.autocast_increment_nesting()
    try:
        off = torch.autocast(TRACED_ON.type, dtype=torch.bfloat16, enabled=False)
        with quiet(), unset_fake_temporarily(), torch.inference_mode(False), off:
            yield
    finally:
        for kind, (enabled, dtype) in kinds.items():
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(caches)
        # A trace that failed inside autocast never left it; leave it until the depth at entry is restored.
        left = torch.autocast_decrement_nesting()
        while left >= depth:
            left = torch.autocast_decrement_nesting()
        if left == 0:
            torch.clear_autocast_cache()


@contextlib.contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Collect the warnings of torch's tracing, and silence its logs; both concern torch's internals."""
    logger = logging.getLogger("torch")
    level = logger.level
    with warnings.catch_warnings(record=True) as caught:
        # "always": by default Python shows a warning once per line, so the collection would depend on earlier code.
        warnings.simplefilter("always")
        logger.setLevel(logging.CRITICAL)
        try:
            yield caught
        finally:
            logger.setLevel(level)
