"""The calling thread as a core that runs ops, for a while."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dlplacer.runtime.devices.base import HOST_DEVICE


@contextmanager
def own_modes() -> Iterator[None]:
    """As on a thread of a device: neither in the caller's inference mode nor in its autocast, with gradients on."""
    with torch.inference_mode(False):  # which turns gradients on too
        if torch.is_autocast_enabled(HOST_DEVICE.type):
            with torch.autocast(HOST_DEVICE.type, enabled=False):
                yield
        else:
            yield


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Keep the calling thread on a core, with one torch thread and none of its modes (`own_modes`).

    Where the system cannot keep threads on cores it runs where it runs.
    """
    pins = hasattr(os, "sched_setaffinity")
    before = os.sched_getaffinity(0) if pins else set()
    threads = torch.get_num_threads()
    # A Ctrl-C may come between any two calls: each is undone by a clause of its own.
    try:
        if pins:
            os.sched_setaffinity(0, {core})
        try:
            if threads != 1:
                torch.set_num_threads(1)
            with own_modes():
                yield
        finally:
            if threads != 1:
                torch.set_num_threads(threads)
    finally:
        if pins:
            os.sched_setaffinity(0, before)
