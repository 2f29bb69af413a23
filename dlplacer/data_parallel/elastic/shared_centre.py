"""The centre of asynchronous training: one vector in memory that all workers of this machine share.

The memory has no name in the file system, so that nothing is left of it once the last process has ended, however that
happens. The lock is a record lock, which the kernel gives back when its holder dies; a worker that dies while it writes
leaves the centre as it was, because the vector exists twice and an exchange counts from one store of one word.
"""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dlplacer.core.errors import InputError

STARTING, RUNNING, DONE, LOST = range(4)
_WORD = struct.Struct("q")
_POLL_S = 50e-6


@dataclass(frozen=True)
class CentreFiles:
    """Where workers find the shared memory: open files of the process that made it.

    Attributes
    ----------
    header
        A word of events × 2 + the valid vector, then per worker its state and when it was last active.
    values
        Two vectors of which one is valid, and what the centre began with.
    log
        One word per event, in order.
    """

    process: int
    workers: int
    header: int
    values: int
    log: int

    @classmethod
    def create(cls, workers: int) -> "CentreFiles":
        """Empty memory for so many workers; `close` it."""
        if not hasattr(os, "memfd_create"):
            raise InputError("this system has no anonymous shared memory (memfd_create); run_async needs Linux")
        header, values, log = (os.memfd_create(f"dlplacer-{name}") for name in ("header", "values", "log"))
        os.ftruncate(header, _WORD.size * (1 + 2 * workers))
        return cls(os.getpid(), workers, header, values, log)

    def close(self) -> None:
        """Close the files; the memory lasts as long as a process uses it."""
        for file in (self.header, self.values, self.log):
            os.close(file)

    def path(self, file: int) -> str:
        """Of one of the files, for other processes of the same user."""
        return f"/proc/{self.process}/fd/{file}"


class SharedCentre:
    """One process's view of the shared memory.

    Parameters
    ----------
    files
        Opened anew, as record locks belong to processes.
    """

    def __init__(self, files: CentreFiles) -> None:
        self.workers = files.workers
        self._header_file = os.open(files.path(files.header), os.O_RDWR)
        self._log = os.open(files.path(files.log), os.O_RDWR)
        self._values_path = files.path(files.values)
        self._header = np.frombuffer(mmap.mmap(self._header_file, 0), dtype=np.int64)
        self._vectors: Tensor | None = None

    def map_values(self, count: int, dtype: torch.dtype) -> None:
        """Use vectors of so many elements; the first to come makes the memory as large as that."""
        os.truncate(self._values_path, 3 * count * dtype.itemsize)
        self._vectors = torch.from_file(self._values_path, shared=True, size=3 * count, dtype=dtype).view(3, count)

    @property
    def first(self) -> Tensor:
        """What the centre began with: a worker that copies it late must not find it moved by the others."""
        assert self._vectors is not None
        return self._vectors[2]

    @property
    def values(self) -> Tensor:
        """The valid vector."""
        assert self._vectors is not None
        return self._vectors[int(self._header[0]) & 1]

    @property
    def other(self) -> Tensor:
        """The vector that becomes the valid one by the next commit."""
        assert self._vectors is not None
        return self._vectors[1 - (int(self._header[0]) & 1)]

    @property
    def event_count(self) -> int:
        """How many events have happened."""
        return int(self._header[0]) >> 1

    def commit(self, event: int, written: bool) -> None:
        """An event has happened; only within `turn`.

        Parameters
        ----------
        written
            Whether `other` holds the new values.
        """
        count = self.event_count
        os.pwrite(self._log, _WORD.pack(event), _WORD.size * count)
        # One aligned word: before it the event has not happened, after it has, for whoever looks.
        self._header[0] = (count + 1) << 1 | ((int(self._header[0]) & 1) ^ written)

    def events(self) -> list[int]:
        """All events in order."""
        data = os.pread(self._log, _WORD.size * self.event_count, 0)
        return [event for (event,) in _WORD.iter_unpack(data)]

    def last_event(self) -> int | None:
        """The newest event."""
        count = self.event_count
        if not count:
            return None
        (event,) = _WORD.unpack(os.pread(self._log, _WORD.size, _WORD.size * (count - 1)))
        return int(event)

    def state(self, rank: int) -> int:
        """STARTING, RUNNING, DONE or LOST."""
        return int(self._header[1 + rank])

    def set_state(self, rank: int, state: int) -> None:
        """A worker's new state; this is activity."""
        self._header[1 + rank] = state
        self.be_active(rank)

    def be_active(self, rank: int) -> None:
        """This worker is at work, now."""
        self._header[1 + self.workers + rank] = time.monotonic_ns()

    def active_s(self, rank: int) -> float:
        """When a worker was last active, on the monotonic clock."""
        return float(self._header[1 + self.workers + rank]) / 1e9

    @contextmanager
    def turn(self, rank: int, is_my_turn: Callable[[], bool]) -> Iterator[None]:
        """The lock, once it is this worker's turn."""
        while True:
            self.be_active(rank)
            # Blocking: the kernel wakes waiters in the order in which they came.
            fcntl.lockf(self._header_file, fcntl.LOCK_EX)
            try:
                if is_my_turn():
                    yield
                    return
            finally:
                fcntl.lockf(self._header_file, fcntl.LOCK_UN)
            time.sleep(_POLL_S)
