"""Whether the devices of a program run side by side or take turns on one thread: whichever takes less on average."""

from collections.abc import Iterable

from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.device_streams import streams_of
from dlplacer.runtime.executor.alternating_trial import TrialRules

TURNS = TrialRules(
    first=3,
    untimed=1,
    # Threads of one interpreter gain nothing below about 50 µs per op, as they then wait for its lock.
    large_op_s=100e-6,
    warmup=1,
    pairs=5,
    most_pairs=100,
    timed_s=1.0,
    # What a plan says stands unless it costs time.
    share=0.97,
)
"""Of the devices side by side, and of turns as the other way."""


def can_take_turns(devices: Iterable[RuntimeDevice]) -> bool:
    """Whether one thread can run the ops of all these devices: several whose ops are done when their calls return."""
    every = list(devices)
    return len(every) > 1 and all(device.torch_device == HOST_DEVICE and streams_of(device) is None for device in every)
