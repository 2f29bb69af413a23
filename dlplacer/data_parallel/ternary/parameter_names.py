"""Names of the parameters that a bucket holds, and which of them belong to the last layer.

A communication hook sees tensors, not names, and registration does not say whose hook it is. The wrapper that owns a
tensor is therefore looked up among the live objects, once.
"""

import gc
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dlplacer.core.errors import InputError


@dataclass(frozen=True)
class NamedParameters:
    """The parameters of one model.

    Attributes
    ----------
    names
        ``id`` of a parameter → its name; a shared parameter has its first one.
    last_layer
        Names of the parameters of the last module, in the order of registration, that owns one of two dimensions or
        more. A weight that is shared with it, by an embedding for example, counts as its own.
    """

    owner: weakref.ReferenceType[nn.Module]
    names: Mapping[int, str]
    last_layer: frozenset[str]

    @classmethod
    def of(cls, owner: nn.Module, module: nn.Module) -> "NamedParameters":
        """The names that ``module`` gives its parameters, where ``owner`` lives as long as they do."""
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        last: frozenset[str] = frozenset()
        for part in module.modules():
            own = list(part.parameters(recurse=False))
            if any(parameter.dim() > 1 for parameter in own):
                last = frozenset(names[id(parameter)] for parameter in own)
        return cls(weakref.ref(owner), names, last)

    def named(self, parameters: Sequence[torch.Tensor]) -> tuple[str, ...] | None:
        """The names of these parameters; None if one is not of this model, or the model is no more."""
        if self.owner() is None:
            return None
        names = tuple(self.names.get(id(parameter), "") for parameter in parameters)
        return names if all(names) else None

    def in_full_precision(self, patterns: Sequence[str]) -> frozenset[str]:
        """The last layer, and the names that match one of the shell-style patterns."""
        found = set(self.last_layer)
        for pattern in patterns:
            matched = {name for name in self.names.values() if fnmatchcase(name, pattern)}
            if not matched:
                near = get_close_matches(pattern, self.names.values()) or list(self.names.values())[-3:]
                raise InputError(
                    f"exclude: no parameter is named {pattern!r}; names are like {', '.join(near)}, and 'fc.*' means "
                    "all of a module's"
                )
            found |= matched
        return frozenset(found)


def wrapper_of(parameter: torch.Tensor) -> DistributedDataParallel:
    """The DistributedDataParallel that trains this parameter."""
    for candidate in gc.get_objects():
        # By type, as asking some objects for their class loads packages.
        if issubclass(type(candidate), DistributedDataParallel) and any(
            own is parameter for own in candidate.module.parameters()
        ):
            return candidate  # type: ignore[no-any-return]
    raise InputError(
        "ternary_hook: no DistributedDataParallel holds the parameters of this bucket; register the hook with "
        "ddp.register_comm_hook(state, ternary_hook)"
    )
