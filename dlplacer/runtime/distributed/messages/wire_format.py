"""How a tensor travels: a header once, then its bytes in the order in which they lie in memory."""

from dataclasses import dataclass
from typing import Any

import torch

MOST_DIMENSIONS = 64
"""As many as torch's element-wise ops take."""
HEADER_LENGTH = 2 + 2 * MOST_DIMENSIONS
_DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=lambda dtype: str(dtype)
)
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

    def to_header(self) -> torch.Tensor:
        """The format as integers."""
        if self.dtype is None:
            return torch.full((HEADER_LENGTH,), _NOTHING, dtype=torch.int64)
        padding = [0] * (2 * (MOST_DIMENSIONS - len(self.shape)))
        return torch.tensor([_DTYPES.index(self.dtype), len(self.shape), *self.shape, *self.strides, *padding])

    @classmethod
    def of_header(cls, header: torch.Tensor) -> "WireFormat":
        """The format that `to_header` gives these integers."""
        code, count, *rest = header.tolist()
        if code == _NOTHING:
            return cls(None)
        return cls(_DTYPES[code], tuple(rest[:count]), tuple(rest[count : 2 * count]))

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

    def flat(self, value: Any, device: torch.device) -> torch.Tensor:
        """The bytes of a tensor in this format, without copying them if they lie like that already."""
        if self.dtype is None:
            return torch.zeros(1, dtype=torch.uint8, device=device)
        if value.stride() != self.strides or value.is_conj() or value.is_neg():
            laid_out = self.empty(device)
            tensor = self.shaped(laid_out)
            tensor.copy_(value)
            return laid_out
        flat: torch.Tensor = value.as_strided((self.elements,), (1,)).view(torch.uint8)
        return flat

    def empty(self, device: torch.device) -> torch.Tensor:
        """Memory for the bytes of a message."""
        if self.dtype is None:
            return torch.empty(1, dtype=torch.uint8, device=device)
        return torch.empty(self.elements, dtype=self.dtype, device=device).view(torch.uint8)

    def shaped(self, flat: torch.Tensor) -> Any:
        """The tensor whose bytes these are, or None."""
        if self.dtype is None:
            return None
        return flat.view(self.dtype).as_strided(self.shape, self.strides)
