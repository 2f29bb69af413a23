"""The trainable parameters and the buffers of a module as one vector, so that one message carries them all.

Layout: parameters, then float buffers, then the bytes of integer buffers. Each byte is one number of the vector.
All ranks but one send zeros for it, so its sum is exact, and the all-reduce of the weights also carries integers.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dlplacer.core.errors import InputError


@dataclass(frozen=True)
class PackedTensor:
    """One tensor of the vector: elements, or bytes of integers, from `start` to `stop`.

    The tensor is looked up by owner and attribute at every use, because modules may replace a buffer.
    """

    name: str
    owner: nn.Module
    attribute: str
    start: int
    stop: int

    @property
    def tensor(self) -> Tensor:
        """The current tensor: the local part of a sharded tensor, the real and imaginary parts of a complex tensor."""
        return _local(self.owner, self.attribute)

    def of(self, vector: Tensor) -> Tensor:
        """This tensor's part of a vector, in the tensor's shape; integers in their own dtype."""
        part, tensor = vector[self.start : self.stop], self.tensor
        part = part.to(torch.uint8).view(tensor.dtype) if _is_integer(tensor) else part
        return part.view(tensor.shape)


class PackedWeights:
    """A module's trainable parameters and persistent buffers as parts of one vector.

    Frozen parameters and buffers outside the state dict are left out. The vector is float64 if one of the tensors is,
    and float32 otherwise, even for weights in half precision, in which small moves of a centre would be rounded to 0.

    Parameters
    ----------
    device
        The device of the vectors; None means the device of the first parameter.
    frozen
        True to include frozen parameters; otherwise the attribute `frozen` holds them.
    """

    def __init__(self, module: nn.Module, device: torch.device | None = None, frozen: bool = False) -> None:
        modules, kept = dict(module.named_modules()), set(module.state_dict())

        def members(names: Sequence[str]) -> list[tuple[str, nn.Module, str]]:
            return [(name, modules[path], leaf) for name in names for path, _, leaf in [name.rpartition(".")]]

        named = dict(module.named_parameters())
        trainable = [name for name, parameter in named.items() if frozen or parameter.requires_grad]
        if not trainable:
            raise InputError(f"{type(module).__name__} has no trainable parameter; there is nothing to average")
        buffers = {name: buffer for name, buffer in module.named_buffers() if name in kept}
        self.parameters = _placed(members(trainable), 0)
        self.parameter_count = self.parameters[-1].stop
        self.float_buffers = _placed(
            members([name for name, buffer in buffers.items() if not _is_integer(buffer)]), self.parameter_count
        )
        self.floats = (*self.parameters, *self.float_buffers)
        self.float_count = self.floats[-1].stop
        self.integers = _placed(
            members([name for name, buffer in buffers.items() if _is_integer(buffer)]), self.float_count
        )
        self.count = (*self.floats, *self.integers)[-1].stop
        self.frozen = [part.tensor for part in _placed(members([name for name in named if name not in trainable]), 0)]
        self.device = device or self.parameters[0].tensor.device
        wide = any(part.tensor.dtype == torch.float64 for part in self.floats)
        self.dtype = torch.float64 if wide else torch.float32

    @property
    def bytes(self) -> int:
        """The bytes of one message."""
        return self.count * self.dtype.itemsize

    def tensors(self) -> list[tuple[str, tuple[int, ...], torch.dtype, int, int]]:
        """The (name, shape, dtype, start, stop) of every tensor in the vector."""
        parts = (*self.floats, *self.integers)
        return [(p.name, tuple(p.tensor.shape), p.tensor.dtype, p.start, p.stop) for p in parts]

    @property
    def layout(self) -> str:
        """Sizes, and a digest of names, shapes and dtypes, which is equal for compatible vectors."""
        tensors = self.tensors()
        digest = hashlib.sha256("\n".join(f"{name} {shape} {dtype}" for name, shape, dtype, *_ in tensors).encode())
        return f"{len(tensors)} tensors, {self.count} elements, sha256 {digest.hexdigest()[:16]}"

    def empty(self, count: int | None = None) -> Tensor:
        """An uninitialised vector."""
        return torch.empty(self.count if count is None else count, dtype=self.dtype, device=self.device)

    def mapped(self, path: Path) -> Tensor:
        """A vector in a file that processes share; the file is created if it is missing."""
        return torch.from_file(str(path), shared=True, size=self.count, dtype=self.dtype)

    def pack(self, out: Tensor, with_integers: bool) -> Tensor:
        """`out`, filled with the tensors' values; without `with_integers` the integers are zeros."""
        pieces = [part.tensor.reshape(-1) for part in self.floats]
        if with_integers:
            pieces += [part.tensor.reshape(-1).view(torch.uint8) for part in self.integers]
        filled = out[: self.count if with_integers else self.float_count]
        if all(piece.dtype == out.dtype and piece.device == out.device for piece in pieces):
            torch.cat(pieces, out=filled)
        else:
            first = pieces[0].device
            filled.copy_(torch.cat([piece.to(first, self.dtype) for piece in pieces]))
        out[len(filled) :] = 0
        return out

    def assign(self, vector: Tensor) -> None:
        """Give the float tensors a vector's values."""
        for part in self.floats:
            part.tensor.copy_(part.of(vector))

    def add(self, vector: Tensor, parts: Sequence[PackedTensor] | None = None, factor: float = 1.0) -> None:
        """Add a vector, times a factor, to the float tensors, or only to `parts`."""
        for part in self.floats if parts is None else parts:
            part.tensor.add_(part.of(vector).to(part.tensor.device), alpha=factor)

    def set_integers(self, vector: Tensor, before: Sequence[Tensor] | None = None) -> None:
        """Give integer buffers a vector's values, plus their local increments since `before`."""
        for index, part in enumerate(self.integers):
            tensor = part.tensor
            new = part.of(vector).to(tensor.device)
            if before is not None and tensor.dtype == torch.bool:
                new = new ^ before[index] ^ tensor
            elif before is not None:
                new = new + (tensor - before[index])
            tensor.copy_(new)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Copies of the float tensors' values in a vector, by name, in the vector's dtype."""
        return {part.name: part.of(vector).clone() for part in self.floats}

    def from_named(self, values: dict[str, Tensor], out: Tensor) -> None:
        """Fill `out` with values by name."""
        for part in self.floats:
            value = values.get(part.name)
            if value is None or value.numel() != part.stop - part.start:
                found = "is missing" if value is None else f"has {value.numel()} elements"
                raise InputError(
                    f"the state of the centre does not fit this model: {part.name} {found}; the model has "
                    f"{part.stop - part.start}"
                )
            out[part.start : part.stop] = value.reshape(-1)


def _placed(entries: Sequence[tuple[str, nn.Module, str]], start: int) -> tuple[PackedTensor, ...]:
    parts = []
    for name, owner, attribute in entries:
        tensor = _local(owner, attribute)
        stop = start + tensor.numel() * (tensor.element_size() if _is_integer(tensor) else 1)
        parts.append(PackedTensor(name, owner, attribute, start, stop))
        start = stop
    return tuple(parts)


def _local(owner: nn.Module, attribute: str) -> Tensor:
    tensor: Tensor = getattr(owner, attribute).detach()
    # Checks the method and not the class, because importing DTensor takes half as long as importing torch.
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return torch.view_as_real(local) if local.is_complex() else local


def _is_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()
