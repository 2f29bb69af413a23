"""The cores of this machine that this process may use."""

import os


def usable_cores() -> list[int]:
    """Numbers of the cores, ascending; fewer than the machine has where taskset, a container or a scheduler says so."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
