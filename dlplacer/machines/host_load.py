"""The load of this machine: timings on a busy machine say little."""

import os


def load_note() -> str | None:
    """A warning if the machine is busy; None if it is quiet or the system reports no load."""
    cores = os.cpu_count() or 1  # all of the machine, as the load average counts all of its processes
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= cores / 2:
        return None
    return f"this machine is busy (load {load:.1f} on {cores} cores); its timings will say little"
