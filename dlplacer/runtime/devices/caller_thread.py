"""The calling thread as a core that runs ops, for a while; the adapter to torch's private counts of its modes."""

import math
import os
import time
from collections.abc import Callable

import torch

from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice, T

SHORT_S = 0.1
"""What takes longer a device does on its own thread: the caller can be interrupted then, and would save little."""

_PINS = hasattr(os, "sched_setaffinity")


class ShortCalls:
    """Has a device do what a caller waits for: as `RuntimeDevice.call` once it has taken less than `SHORT_S`."""

    def __init__(self) -> None:
        self._last_s = math.inf

    def call(self, device: RuntimeDevice, work: Callable[[], T]) -> T:
        """Run the function, and wait for it."""
        begin = time.perf_counter()
        try:
            return device.call(work) if self._last_s < SHORT_S else device.submit(work).result()
        finally:
            self._last_s = time.perf_counter() - begin


def has_plain_modes() -> bool:
    """Whether the calling thread computes as a new thread does, gradients aside.

    Not in inference mode or autocast, nor under a mode of torch's functions or its dispatcher, as a default device is.
    """
    return not (
        torch.is_inference_mode_enabled()
        or torch.is_autocast_enabled(HOST_DEVICE.type)
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
    )


def call_on_core(core: int, work: Callable[[], T]) -> T:
    """Call a function on this thread, kept on a core, with one torch thread.

    Where the system cannot keep threads on cores it runs where it runs. Other threads that use torch for the first time
    meanwhile have one torch thread too: torch has one number for threads yet to come. Written out, without a context
    manager: what is around a step of 500 short ops runs in cold caches, and takes some hundredths of it.
    """
    threads, before = torch.get_num_threads(), os.sched_getaffinity(0) if _PINS else None
    # A Ctrl-C may come between any two calls: each is undone by a clause of its own.
    try:
        if before is not None:
            os.sched_setaffinity(0, {core})
        try:
            if threads != 1:
                torch.set_num_threads(1)
            return work()
        finally:
            if threads != 1:
                torch.set_num_threads(threads)
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)
