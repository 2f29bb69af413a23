"""Durations averaged over the devices that an op may use."""

from dlplacer.solvers.instance.instance import Instance


def mean_durations(instance: Instance) -> list[float]:
    """[op] → mean ticks over its allowed devices."""
    return [
        sum(row[device] for device in devices) / max(1, len(devices))
        for row, devices in zip(instance.duration, instance.allowed, strict=True)
    ]
