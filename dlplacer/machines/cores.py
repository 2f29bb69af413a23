"""The cores that this process may use, and how busy the machine is."""

import os


def usable_cores() -> list[int]:
    """Numbers of the cores, ascending; taskset, a container or a scheduler may allow only some of the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def load_note() -> str | None:
    """A warning if the machine is busy; None if it is quiet or the system reports no load."""
    cores = os.cpu_count() or 1  # all cores, because the load average counts all processes of the machine
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= cores / 2:
        return None
    return f"this machine is busy (load {load:.1f} on {cores} cores); its timings are unreliable"
