"""One bucket of gradients: its layout, and the encoding and decoding of its tensors (equations: Wen et al. 2017)."""

import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from dlplacer.data_parallel.ternary.torch_kernels import BLOCK, LANES


class TensorSpan(NamedTuple):
    """A parameter's gradient inside a flat buffer: ``numel`` elements from ``start``."""

    name: str
    start: int
    numel: int

    @property
    def place(self) -> slice:
        """The slice of its elements in the buffer."""
        return slice(self.start, self.start + self.numel)


@dataclass(frozen=True)
class BucketLayout:
    """The gradients of a bucket: those sent as codes, and those sent whole, in full precision."""

    names: tuple[str, ...]
    coded: tuple[TensorSpan, ...]
    whole: tuple[TensorSpan, ...]

    @classmethod
    def of(cls, tensors: Sequence[tuple[str, int]], is_coded: Callable[[str, int], bool]) -> "BucketLayout":
        """The layout of a flat gradient that consists of these (name, numel) tensors in order."""
        spans, start = [], 0
        for name, numel in tensors:
            spans.append(TensorSpan(name, start, numel))
            start += numel
        coded = tuple(span for span in spans if is_coded(span.name, span.numel))
        # By name, because an all-reduce adds elements in an order that depends on their place and DDP rebuilds buckets.
        whole = sorted(set(spans) - set(coded))
        return cls(tuple(name for name, _ in tensors), coded, tuple(whole))

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """(start, numel, start among the codes) of every coded tensor, for the kernels."""
        sizes = np.array([span.numel for span in self.coded], dtype=np.int64)
        starts = np.array([span.start for span in self.coded], dtype=np.int64)
        return np.ascontiguousarray(np.stack([starts, sizes, np.cumsum(sizes) - sizes], axis=1))

    @cached_property
    def coded_numel(self) -> int:
        """The number of elements that become codes."""
        return sum(span.numel for span in self.coded)

    @property
    def blocks(self) -> int:
        """The number of blocks of codes."""
        return -(-self.coded_numel // BLOCK)


@dataclass
class Counters:
    """Bytes that one rank has sent, and would have sent with a plain all-reduce, and the time of its codec.

    An all-gather sends N − 1 times its message, an all-reduce 2 (N − 1) ÷ N times, an all-to-all (N − 1) ÷ N times. A
    GPU is not timed, because it works asynchronously.
    """

    sent_bytes: float = 0.0
    full_bytes: float = 0.0
    coding_s: dict[str, float] = field(default_factory=lambda: {"encode": 0.0, "decode": 0.0})
    coded_bytes: dict[str, int] = field(default_factory=lambda: {"encode": 0, "decode": 0})
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def sent(self, sent_bytes: float) -> None:
        """Count bytes on the wire."""
        with self._lock:
            self.sent_bytes += sent_bytes

    @contextmanager
    def coding(self, kind: str, device: torch.device, numel: int = 0) -> Iterator[None]:
        """Time the encoding or decoding (`kind`) of `numel` elements."""
        begin = time.perf_counter()
        yield
        if device.type == "cpu":
            with self._lock:
                self.coding_s[kind] += time.perf_counter() - begin
                self.coded_bytes[kind] += 4 * numel

    def coding_s_per_byte(self, kind: str) -> float | None:
        """Seconds of the codec per byte of a float32 gradient; None before the first timing."""
        return self.coding_s[kind] / self.coded_bytes[kind] if self.coded_bytes[kind] else None


@dataclass
class BucketCodec:
    """Encodes and decodes one bucket; the codec is kept between steps, so that buffers are allocated once.

    `scalers`, `planes`: Scalers and planes of this rank's last message; None before the first.
    """

    layout: BucketLayout
    clip: float
    seed: int
    group: dist.ProcessGroup
    counters: Counters
    transport: str
    kernels: ModuleType
    scalers: torch.Tensor | None = None
    planes: torch.Tensor | None = None
    _buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """The number of ranks in the group."""
        return self.group.size()

    def buffer(self, use: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The tensor for a use: the same tensor in every step, initially zero."""
        if use not in self._buffers:
            self._buffers[use] = torch.zeros(*shape, dtype=dtype, device=device)
        return self._buffers[use]

    def measured(self, exact: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Limits and scalers of the coded tensors of a float32 gradient."""
        with self.counters.coding("encode", exact.device):
            return limits_and_scalers([exact[span.place] for span in self.layout.coded], self.clip)

    def encode(
        self, exact: torch.Tensor, step: int, limits: torch.Tensor, scalers: torch.Tensor, planes: torch.Tensor
    ) -> None:
        """Fill `planes` (int32, [blocks or more, 2, 64]) with this rank's codes of a float32 gradient, plus 1."""
        codes = self.buffer("codes", (len(planes) * BLOCK,), torch.int8, exact.device)
        with self.counters.coding("encode", exact.device, self.layout.coded_numel):
            for tensor, span in enumerate(self.layout.coded):
                first = int(self.layout.table[tensor, 2])
                key = stream_key(self.seed, step, span.name, self.group.rank())
                own = codes[first : first + span.numel]
                self.kernels.draw(exact[span.place], limits[tensor], scalers[tensor], *key, own)
            self.kernels.pack(codes, 1, planes)
        self.scalers, self.planes = scalers, planes

    def decode(self, rows: torch.Tensor, offset: int, factors: torch.Tensor, flat: torch.Tensor) -> None:
        """Fill the coded parts of a gradient with the mean over ranks, from planes of codes or of their sums."""
        exact = as_float32(flat)
        with self.counters.coding("decode", flat.device, self.layout.coded_numel):
            self.kernels.decode(rows, offset, self.layout.table, factors, 1 / self.ranks, exact)
            if exact is not flat:
                for span in self.layout.coded:
                    flat[span.place] = exact[span.place]

    def nonzero(self) -> int:
        """Number of nonzero codes in this rank's last message; only code 0 sets the low bit."""
        if self.planes is None:
            return 0
        bits = torch.arange(32, dtype=torch.int32, device=self.planes.device)
        zeros = int((self.planes[: self.layout.blocks, 0].unsqueeze(-1) >> bits & 1).sum())
        padding = self.layout.blocks * BLOCK - self.layout.coded_numel  # The padding consists of zeros.
        return self.layout.coded_numel - (zeros - padding)


def limits_and_scalers(tensors: Sequence[torch.Tensor], clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Limits and scalers of float32 tensors: clipping bounds (eq. 21), and largest magnitudes within them (eq. 2).

    A limit is infinite if clipping would destroy the tensor: if all elements are equal, or if the mean exceeds the
    deviation, as in biases. Limit and scaler are infinite if an element is infinite or undefined.
    """
    sizes = torch.tensor([len(each) for each in tensors], dtype=torch.float64, device=tensors[0].device)
    means = torch.stack([each.sum() for each in tensors]) / sizes
    squares = torch.stack([torch.linalg.vector_norm(each) for each in tensors]).double().square() / sizes
    largest = torch.stack([torch.stack(torch.aminmax(each)).abs().amax() for each in tensors])
    deviations = (squares - means.square()).clamp(min=0).sqrt()
    destroys = (deviations == 0) | (means.abs() > deviations) | ~torch.isfinite(largest)
    limits = torch.where(destroys, torch.inf, clip * deviations).float()
    return limits, torch.where(torch.isfinite(largest), torch.minimum(limits, largest), torch.inf)


def planes_shape(blocks: int, bits: int = 2) -> tuple[int, int, int]:
    """The shape of planes with `bits` bits per number."""
    return blocks, bits, LANES


def as_float32(flat: torch.Tensor) -> torch.Tensor:
    """The gradient as float32, which the kernels need."""
    return flat if flat.dtype == torch.float32 else flat.float()


def stream_key(seed: int, step: int, name: str, rank: int) -> tuple[int, int]:
    """The two 32-bit halves of the key of one tensor's random numbers.

    The random numbers depend only on these four values, not on order, buckets or threads, so a resumed run draws the
    same numbers.
    """
    said = struct.pack("<qqq", seed, step, rank) + name.encode()
    first, second = struct.unpack("<II", blake2b(said, digest_size=8).digest())
    return first, second


def kernels_for(device_type: str) -> ModuleType:
    """The compiled kernels for a CPU, or the kernels in plain PyTorch for other devices."""
    if device_type == "cpu":
        from dlplacer.data_parallel.ternary import compiled_kernels

        return compiled_kernels
    from dlplacer.data_parallel.ternary import torch_kernels

    return torch_kernels


def ring_bytes(ranks: int, size_bytes: float) -> float:
    """Bytes that each rank sends in a ring all-reduce."""
    return 2 * (ranks - 1) / ranks * size_bytes
