"""Parameters and buffers that live on other processes: names without data here."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dlplacer.runtime.distributed.rank_variant import RankVariant


def give_up_other_parts(module: nn.Module, variant: RankVariant) -> None:
    """Let go of the data of parameters and buffers that a step has on other processes; they go to the meta device."""
    here = {code.name for code in variant.captured.executable.of_role("parameter", "buffer")}
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    kept = {id(tensor) for name, tensor in named if name in here}
    known = {code.name for code in variant.whole.executable.of_role("parameter", "buffer")}
    gone = {id(tensor) for name, tensor in named if name in known and not tensor.is_meta} - kept
    emptied: dict[int, Any] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is not None and id(tensor) in gone:
                    table[name] = emptied.setdefault(id(tensor), _emptied(tensor))


def without_other_parts(state: Mapping[str, Any], own: Mapping[str, Any]) -> "OrderedDict[str, Any]":
    """A state dict to load where some tensors live on other processes: of these it has shape and dtype alone.

    Parameters
    ----------
    own
        The state dict of this process.
    """
    found: OrderedDict[str, Any] = OrderedDict(
        (name, _emptied(value) if _is_elsewhere(own.get(name)) and isinstance(value, torch.Tensor) else value)
        for name, value in state.items()
    )
    return with_metadata(found, state)


def with_metadata(state: "OrderedDict[str, Any]", of: Mapping[str, Any]) -> "OrderedDict[str, Any]":
    """A state dict with what another one carries besides tensors: versions of modules, what random ops draw from."""
    if hasattr(of, "_metadata"):
        state._metadata = of._metadata  # type: ignore[attr-defined]
    return state


def _is_elsewhere(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_meta


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    # With the very strides, also where they have gaps: they are part of what a step is captured from, and another
    # process, which has the data, captures it from those.
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
