"""When every op of a recorded step ran, on one clock for all devices."""

import time
from dataclasses import dataclass, field
from typing import Any

from dlplacer.runtime.devices.base import RuntimeDevice


@dataclass(frozen=True, slots=True)
class OpSpan:
    """An op from the moment at which its device turned to it to the moment at which it was done with it."""

    op: str
    start_s: float
    end_s: float


@dataclass
class DeviceTimeline:
    """The marks that one device sets in one step.

    An op begins where the op before it ended, or where the last tensor that the device waited for had arrived: what the
    runtime itself costs between two ops counts to the second one, and waiting counts to none.

    Attributes
    ----------
    marks
        (op, begin, end), in order.
    """

    marks: list[tuple[str, Any, Any]] = field(default_factory=list)
    _origins: list[tuple[int, Any, int]] = field(default_factory=list)
    _resumed: Any = None

    def begin(self, device: RuntimeDevice) -> None:
        """Called on the device's thread when a program starts there and the device has nothing else to do."""
        self._resumed = device.now()
        self._origins.append((time.perf_counter_ns(), self._resumed, len(self.marks)))

    def resume(self, device: RuntimeDevice) -> None:
        """Called when a tensor has arrived that the device waited for."""
        self._resumed = device.now()

    def finish(self, op: str, device: RuntimeDevice) -> None:
        """Called behind an op."""
        end = device.now()
        self.marks.append((op, self._resumed, end))
        self._resumed = end

    def spans(self, device: RuntimeDevice, zero_ns: int | None = None) -> list[OpSpan]:
        """The ops in order, in seconds since a moment of ``time.perf_counter_ns``, by default the program's start."""
        if not self._origins:
            return []
        zero_ns = self._origins[0][0] if zero_ns is None else zero_ns
        found = []
        bounds = [first for _, _, first in self._origins[1:]] + [len(self.marks)]
        for (host_ns, origin, first), last in zip(self._origins, bounds, strict=True):
            # Events of different GPUs cannot be compared; each is related to the host's clock at the program's start.
            offset_s = (host_ns - zero_ns) * 1e-9
            for op, begin, end in self.marks[first:last]:
                start_s = offset_s + device.elapsed_s(origin, begin)
                found.append(OpSpan(op, start_s, offset_s + device.elapsed_s(origin, end)))
        return found

    @property
    def started_ns(self) -> int:
        """Moment of ``time.perf_counter_ns`` at which the first program started; 0 if none has."""
        return self._origins[0][0] if self._origins else 0
