"""How a tensor travels: its bytes, in the order in which they lie in memory."""

from dataclasses import dataclass
from typing import Any

import torch

MOST_DIMENSIONS = 64
"""As many as torch's element-wise ops take."""
HEADER_LENGTH = 2 + 2 * MOST_DIMENSIONS
_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
_NOTHING = -1


@dataclass(frozen=True, slots=True)
class WireFormat:
    """Shape, strides and dtype of a message; `dtype` is None for one that carries only an order."""

    dtype: torch.dtype | None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements that travel; an order travels as one byte."""
        return 1 if self.dtype is None else int(torch.Size(self.shape).numel())

    def to_header(self, device: torch.device) -> torch.Tensor:
        """The format as integers."""
        dtype = _NOTHING if self.dtype is None else _DTYPES.index(self.dtype)
        numbers = [dtype, len(self.shape), *self.shape, *self.strides]
        return torch.tensor([*numbers, *[0] * (HEADER_LENGTH - len(numbers))], device=device)

    @classmethod
    def of_header(cls, header: torch.Tensor) -> "WireFormat":
        """The format that `to_header` gives these integers."""
        dtype, count, *rest = header.tolist()
        return cls(None if dtype == _NOTHING else _DTYPES[dtype], tuple(rest[:count]), tuple(rest[count : 2 * count]))

    @classmethod
    def of(cls, value: Any) -> "WireFormat":
        """The format of a tensor, or of None. A tensor with gaps or repeats in memory travels without them."""
        if value is None:
            return cls(None)
        strides = value.stride()
        by_stride = sorted(range(value.dim()), key=lambda dimension: -strides[dimension])
        if not value.permute(by_stride).is_contiguous():
            strides = torch.empty(value.shape, device="meta").stride()
        return cls(value.dtype, tuple(value.shape), tuple(strides))

    def flat(self, value: Any, device: torch.device | None = None) -> torch.Tensor:
        """The bytes of a tensor in this format, without copying them if they lie like that; of None one on a device."""
        if self.dtype is None:
            return torch.zeros(1, dtype=torch.uint8, device=device)
        if value.stride() != self.strides or value.is_conj() or value.is_neg():
            laid_out = self.empty(value.device)
            self.shaped(laid_out).copy_(value)
            return laid_out
        flat: torch.Tensor = value.as_strided((self.elements,), (1,)).view(torch.uint8)
        return flat

    def empty(self, device: torch.device) -> torch.Tensor:
        """Memory for the bytes of a message."""
        return torch.empty(self.elements, dtype=self.dtype or torch.uint8, device=device).view(torch.uint8)

    def shaped(self, flat: torch.Tensor) -> Any:
        """The tensor whose bytes these are, or None."""
        return None if self.dtype is None else flat.view(self.dtype).as_strided(self.shape, self.strides)
