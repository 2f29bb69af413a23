"""Random ops draw from (seed, step, op id): where an op runs does not change what it draws."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator

import torch

from dlplacer.runtime.devices.kinds import kind_of

_generator_lock = threading.Lock()


def _renew_lock() -> None:
    """In a forked process: nobody is left who would release the lock."""
    global _generator_lock
    _generator_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


@contextlib.contextmanager
def drawn_with(seed: int, step: int, op: str, device: torch.device) -> Iterator[None]:
    """Seed torch's default generator of a device for one op, and give it back as it was.

    CPU devices share one generator, so only one of them draws at a time.
    """
    # Not hash(): it is salted per process, and ranks must draw the same numbers.
    digest = hashlib.sha256(f"{seed}/{step}/{op}".encode()).digest()
    number = int.from_bytes(digest[:8], "little") % 2**63
    with _generator_lock:
        generator = kind_of(device).generator(device.index or 0)
        state = generator.get_state()
        generator.manual_seed(number)
        try:
            yield
        finally:
            generator.set_state(state)
