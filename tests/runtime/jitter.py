"""A device with random delays at every synchronization point, to provoke races."""

import copy
import random
import time
from collections.abc import Callable
from typing import Any

from dlplacer.runtime.devices.base import RuntimeDevice


def delayed(device: RuntimeDevice, most_s: float, seed: int) -> RuntimeDevice:
    """The device with a pause of at most `most_s`, with probability ½, before it sends or copies and after it receives
    or waits.

    An order of work that is not enforced is broken sooner or later. On CUDA the compute stream pauses, or the thread.
    """
    chooser = random.Random(f"{seed}/{device.name}")
    on_stream: Callable[[float], None] = getattr(device, "pause", time.sleep)

    def pause() -> None:
        if chooser.random() < 0.5:
            chooser.choice((on_stream, time.sleep))(chooser.uniform(0, most_s))

    def between(before: bool, call: Callable[..., Any], after: bool) -> Callable[..., Any]:
        def hesitant(*args: Any) -> Any:
            if before:
                pause()
            found = call(*args)
            if after:
                pause()
            return found

        return hesitant

    found, streams = copy.copy(device), copy.copy(device.streams)
    vars(found)["submit"] = lambda work: device.submit(between(True, work, False))
    vars(found)["receive"] = between(True, device.receive, True)
    if streams is not None:
        vars(streams)["wait"] = between(False, streams.wait, True)
        vars(streams)["copy"] = between(True, streams.copy, False)
        vars(found)["streams"] = streams
    return found
