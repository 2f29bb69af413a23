"""This machine as a topology, its links measured on request."""

from collections.abc import Callable

from dlplacer.core.topology import Topology
from dlplacer.machines.importers.host import host_topology
from dlplacer.machines.importers.measured_links import measured
from dlplacer.machines.importers.nvml import has_gpus, nvml_topology


def detected_topology(
    kind: str = "auto", measure: bool = False, on_copy: Callable[[str, str], None] = lambda source, target: None
) -> Topology:
    """The GPUs of this host or, without any, the cores of this process.

    Parameters
    ----------
    kind
        ``gpu``, ``cpu``, or ``auto``.
    measure
        Whether to time copies over every link: see `dlplacer.machines.importers.measured_links.measured`.
    on_copy
        Called with the ends of a link before a copy over it is timed.

    Raises
    ------
    InputError
        If there are no GPUs and ``gpu`` is asked for.
    """
    gpus = kind == "gpu" or (kind == "auto" and has_gpus())
    topology = nvml_topology() if gpus else host_topology()
    return _measured(topology, "cuda" if gpus else "cpu", on_copy) if measure else topology


def _measured(topology: Topology, kind: str, on_copy: Callable[[str, str], None]) -> Topology:
    from dlplacer.runtime.devices.kinds import in_host_memory
    from dlplacer.runtime.devices.open import open_devices
    from dlplacer.runtime.profile.link_times import copy_timer

    names = [f"{kind}:{place}" for place in range(len(topology.devices))]
    opened = dict(zip(topology.device_index, open_devices(names), strict=True))
    copy_s = copy_timer(opened)

    def timed(source: str, target: str, size_bytes: int) -> float:
        on_copy(source, target)
        return copy_s(source, target, size_bytes)

    try:
        return measured(topology, timed, shared_memory=in_host_memory(opened.values()))
    finally:
        for device in opened.values():
            device.close()
