"""Bytes and seconds of ternary gradients, counted where they are spent."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Counters:
    """What one rank has sent, and how long its codec took.

    Attributes
    ----------
    sent_bytes
        What this rank has sent, with the algorithms of the library: an all-gather sends (N − 1) times its message, an
        all-reduce 2 (N − 1) ÷ N times, an all-to-all (N − 1) ÷ N times.
    full_bytes
        What an all-reduce of the same gradients, in their own type, would have sent.
    encoded_bytes, decoded_bytes
        Of gradients in float32; a decoded byte is one of the mean, however many ranks sent codes for it.
    """

    sent_bytes: float = 0.0
    full_bytes: float = 0.0
    encode_s: float = 0.0
    encoded_bytes: int = 0
    decode_s: float = 0.0
    decoded_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def sent(self, sent_bytes: float) -> None:
        """Count what goes on the wire."""
        with self._lock:
            self.sent_bytes += sent_bytes

    @contextmanager
    def encoding(self, device: torch.device, numel: int) -> Iterator[None]:
        """Time what codes so many elements; on a GPU, which works later than it is told, nothing is timed."""
        begin = time.perf_counter()
        yield
        if device.type == "cpu":
            with self._lock:
                self.encode_s += time.perf_counter() - begin
                self.encoded_bytes += 4 * numel

    @contextmanager
    def decoding(self, device: torch.device, numel: int) -> Iterator[None]:
        """Time what gives the mean of so many elements over all ranks."""
        begin = time.perf_counter()
        yield
        if device.type == "cpu":
            with self._lock:
                self.decode_s += time.perf_counter() - begin
                self.decoded_bytes += 4 * numel


def ring_bytes(ranks: int, size_bytes: float) -> float:
    """What each rank sends in a ring all-reduce."""
    return 2 * (ranks - 1) / ranks * size_bytes
