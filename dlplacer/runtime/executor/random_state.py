"""Random ops draw from (seed of the step, op id): where an op runs does not change what it draws."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator

import torch

from dlplacer.runtime.devices.open import kind_of

_locks: dict[torch.device, threading.Lock] = {}
_making = threading.Lock()


def generator_lock(device: torch.device) -> threading.Lock:
    """The lock of a device's default generator: CPU devices share one, and so do the parts of a GPU."""
    with _making:
        return _locks.setdefault(torch.device(device.type, device.index or 0), threading.Lock())


def _renew_locks() -> None:
    """In a forked process: nobody is left who would release the locks."""
    global _making
    _making = threading.Lock()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


@contextlib.contextmanager
def drawn_with(seed: int, op: str, device: torch.device) -> Iterator[None]:
    """Seed torch's default generator of a device for one op, and give it back as it was."""
    with generator_lock(device):
        generator = kind_of(device).generator(device.index or 0)
        state = generator.get_state()
        try:
            # Not hash(): it is salted per process, and ranks must draw the same numbers.
            digest = hashlib.sha256(f"{seed}/{op}".encode()).digest()
            generator.manual_seed(int.from_bytes(digest[:8], "little") % 2**63)
            yield
        finally:
            generator.set_state(state)
