"""The calling thread as a core that runs ops, for a while."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dlplacer.runtime.devices.base import HOST_DEVICE, T

_PINS = hasattr(os, "sched_setaffinity")


def call_on_core(core: int, work: Callable[[], T]) -> T:
    """Call a function on this thread, kept on a core, with one torch thread and the modes of a new thread.

    Where the system cannot keep threads on cores it runs where it runs. Written out, without a context manager: what is
    around a step of 500 short ops runs in cold caches, and takes some hundredths of it.
    """
    threads, before = torch.get_num_threads(), os.sched_getaffinity(0) if _PINS else None
    # A Ctrl-C may come between any two calls: each is undone by a clause of its own.
    try:
        if before is not None:
            os.sched_setaffinity(0, {core})
        try:
            if threads != 1:
                torch.set_num_threads(1)
            if _has_own_modes():
                return work()
            with own_modes():
                return work()
        finally:
            if threads != 1:
                torch.set_num_threads(threads)
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


@contextmanager
def own_modes() -> Iterator[None]:
    """As on a thread of a device: neither in the caller's inference mode nor in its autocast, with gradients on."""
    with torch.inference_mode(False):  # which turns gradients on too
        if torch.is_autocast_enabled(HOST_DEVICE.type):
            with torch.autocast(HOST_DEVICE.type, enabled=False):
                yield
        else:
            yield


def _has_own_modes() -> bool:
    return (
        torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and not torch.is_autocast_enabled(HOST_DEVICE.type)
    )
