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
import torch.distributed as dist
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
        Names of what the last layer owns.
    """

    owner: weakref.ReferenceType[torch.nn.Module]
    names: Mapping[int, str]
    last_layer: frozenset[str]

    def of(self, parameters: Sequence[torch.Tensor]) -> tuple[str, ...] | None:
        """The names of these parameters; None if one is not of this model, or the model is no more."""
        if self.owner() is None:
            return None
        names = tuple(self.names.get(id(parameter), "") for parameter in parameters)
        return names if all(names) else None

    def matching(self, patterns: Sequence[str]) -> frozenset[str]:
        """The names that match one of the shell-style patterns.

        Raises
        ------
        InputError
            If a pattern matches none.
        """
        found: set[str] = set()
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


def named_parameters(owner: torch.nn.Module, module: torch.nn.Module) -> NamedParameters:
    """The names that ``module`` gives its parameters, where ``owner`` is what lives as long as they do.

    The last layer is the last module, in the order of registration, that owns a parameter of two dimensions or more.
    Where its weight is shared, with an embedding for example, that counts as the last layer too.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    last: frozenset[str] = frozenset()
    for part in module.modules():
        own = list(part.parameters(recurse=False))
        if any(parameter.dim() > 1 for parameter in own):
            last = frozenset(names[id(parameter)] for parameter in own)
    return NamedParameters(weakref.ref(owner), names, last)


def wrapper_of(parameter: torch.Tensor) -> DistributedDataParallel:
    """The DistributedDataParallel that trains this parameter.

    Raises
    ------
    InputError
        If there is none.
    """
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


def agreed_group(given: dist.ProcessGroup | None, wrapper: DistributedDataParallel) -> dist.ProcessGroup:
    """The group over which gradients are averaged: the wrapper's, which a given one must have the ranks of.

    Raises
    ------
    InputError
        If the two have different ranks.
    """
    own: dist.ProcessGroup = wrapper.process_group
    if given is None or given is own:
        return own
    ours, theirs = dist.get_process_group_ranks(given), dist.get_process_group_ranks(own)
    if ours != theirs:
        raise InputError(
            f"TernaryState has a process group of ranks {ours}, the DistributedDataParallel one of {theirs}; give both "
            "the same"
        )
    return given
