"""Stand-ins for tensors: the same shape, dtype and strides on the CPU, but no data and no memory."""

import contextlib
import functools
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from dlplacer.frontend.torch.tracing.installed_code import is_installed
from dlplacer.frontend.torch.tracing.quiet import TRACED_ON

_LEAVES = (torch.Tensor, str, bytes, int, float, type(None), type, types.ModuleType)
_CONTAINERS = (list, dict, OrderedDict, defaultdict, deque, set)


def fake_tensor(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """The stand-in of a tensor that is real, on the meta device, or a stand-in of another mode."""
    with mode:
        # With the strides of the tensor: which views are legal, and which kernels are traced, depends on them.
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=TRACED_ON)


def fake_tree(value: Any, mode: FakeTensorMode) -> Any:
    """A nested value with every tensor replaced by its stand-in."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: fake_tensor(tensor, mode), value)


def stand_ins_of(modules: Iterable[nn.Module], mode: FakeTensorMode) -> dict[int, torch.Tensor]:
    """Id of a parameter or buffer of the modules → its stand-in."""
    found: dict[int, torch.Tensor] = {}
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            stand_in = fake_tensor(tensor, mode)
            if isinstance(tensor, nn.Parameter):
                stand_in = nn.Parameter(stand_in, requires_grad=tensor.requires_grad)
            found.setdefault(id(tensor), stand_in)
    return found


@contextlib.contextmanager
def stood_in(roots: Iterable[Any], stand_ins: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Have everything that is reached from modules and functions hold stand-ins, and give it back as it was.

    A capture runs on the user's own objects, as closures, hooks and weak references lead to no copy of them. Whatever
    it changes is undone: attributes, the contents of containers, the variables of closures and globals. Tensors without
    a stand-in stay: they are constants of the step, whose values decide the traced code. One without data is zero.
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
    """What a value leads to, with stand-ins in it from now on."""
    if isinstance(value, types.FunctionType):
        if is_installed(value.__module__ or ""):
            return []
        cells = [cell for cell in value.__closure__ or () if _filled(cell)]
        for cell in cells:
            undo.append(functools.partial(setattr, cell, "cell_contents", cell.cell_contents))
        used = {name: value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__}
        undo.append(functools.partial(value.__globals__.update, used))
        return [*(cell.cell_contents for cell in cells), *(value.__defaults__ or ()), *used.values()]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, _CONTAINERS):
        return _filled_container(value, stand_ins, undo) if type(value) in _CONTAINERS else []
    attributes = getattr(value, "__dict__", None) if _is_own(value) else None
    methods = () if is_installed(type(value).__module__) else vars(type(value)).values()
    return [attributes, *methods] if type(attributes) is dict else []


def _is_own(value: Any) -> bool:
    """True for modules and for objects of the user's classes: those of installed packages keep what is theirs."""
    kind = type(value).__module__
    return isinstance(value, nn.Module) or not (kind in sys.stdlib_module_names or is_installed(kind))


def _filled_container(value: Any, stand_ins: Mapping[int, torch.Tensor], undo: list[Callable[[], None]]) -> list[Any]:
    before = value.copy()
    undo.append(functools.partial(_restore, value, before))
    if isinstance(value, dict):
        places: Iterable[Any] = list(value)
    else:
        places = () if isinstance(value, set) else range(len(value))
    for place in places:
        own = value[place]
        new = _stand_in(own, stand_ins)
        if new is not own:
            value[place] = new
    return list(before.values() if isinstance(before, dict) else before)


def _stand_in(value: Any, stand_ins: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(value, weakref.ref):
        found = stand_ins.get(id(value()))
        return value if found is None else weakref.ref(found)
    if not isinstance(value, torch.Tensor):
        return value
    empty = value.is_meta or isinstance(value, FakeTensor)
    known = stand_ins.get(id(value))
    if known is not None:
        return known
    return torch.zeros(value.shape, dtype=value.dtype) if empty else value


def _restore(container: Any, before: Any) -> None:
    container.clear()
    container.extend(before) if isinstance(container, (list, deque)) else container.update(before)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
