"""Whether the devices of a program run side by side or take turns on one thread: whichever was quicker."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from dlplacer.runtime.devices.base import HOST_DEVICE, RuntimeDevice
from dlplacer.runtime.devices.device_streams import streams_of


@dataclass(frozen=True)
class TurnParameters:
    """When turns are tried, and when they are taken.

    Attributes
    ----------
    runs
        Runs of each kind before the choice. The quickest counts: the first one compiles, any may be disturbed.
    small_op_s
        Turns are not tried if an op takes longer than this on average. Threads of one interpreter gain nothing below
        about 50 µs per op, as they then wait for its lock; above, a trial would cost more than it can bring.
    quickest
        Turns are taken if they need at most this part of the time that the devices need side by side: what a plan says
        stands unless it costs time.
    """

    runs: int = 3
    small_op_s: float = 100e-6
    quickest: float = 0.9


@dataclass
class TurnTaking:
    """The choice for one program, made from its first runs and then kept.

    Attributes
    ----------
    chosen
        Whether the devices take turns; None before the choice.
    """

    op_count: int
    chosen: bool | None
    parameters: TurnParameters = TurnParameters()
    _times_s: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})

    @property
    def next(self) -> bool:
        """Whether the devices take turns in the next run."""
        if self.chosen is not None:
            return self.chosen
        return len(self._times_s[False]) >= self.parameters.runs

    def note(self, by_turns: bool, seconds: float) -> None:
        """Learn how long a run took."""
        if self.chosen is not None:
            return
        rules, times = self.parameters, self._times_s
        times[by_turns].append(seconds)
        if len(times[False]) >= rules.runs and min(times[False]) > rules.small_op_s * self.op_count:
            self.chosen = False
        elif len(times[True]) >= rules.runs:
            self.chosen = min(times[True]) <= rules.quickest * min(times[False])


def can_take_turns(devices: Iterable[RuntimeDevice]) -> bool:
    """Whether one thread can run the ops of all these devices: several whose ops are done when their calls return."""
    every = list(devices)
    return len(every) > 1 and all(device.torch_device == HOST_DEVICE and streams_of(device) is None for device in every)
