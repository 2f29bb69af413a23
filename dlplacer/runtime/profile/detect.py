"""This machine as a topology, its links measured on request."""

from dlplacer.core.topology import Topology
from dlplacer.machines.importers.host import host_topology
from dlplacer.machines.importers.measured_links import measured
from dlplacer.machines.importers.nvml import has_gpus, nvml_topology


def detected_topology(kind: str = "auto", measure: bool = False) -> Topology:
    """The GPUs of this host or, without any, the cores of this process.

    Parameters
    ----------
    kind
        ``gpu``, ``cpu``, or ``auto``.
    measure
        Whether to time copies over every link: see `dlplacer.machines.importers.measured_links.measured`.

    Raises
    ------
    InputError
        If there are no GPUs and ``gpu`` is asked for.
    """
    gpus = kind == "gpu" or (kind == "auto" and has_gpus())
    topology = nvml_topology() if gpus else host_topology()
    return _measured(topology, "cuda" if gpus else "cpu") if measure else topology


def _measured(topology: Topology, kind: str) -> Topology:
    from dlplacer.runtime.devices.kinds import in_host_memory
    from dlplacer.runtime.devices.open import open_devices
    from dlplacer.runtime.profile.link_times import copy_timer

    names = [f"{kind}:{place}" for place in range(len(topology.devices))]
    opened = dict(zip(topology.device_index, open_devices(names), strict=True))
    try:
        return measured(topology, copy_timer(opened), shared_memory=in_host_memory(opened.values()))
    finally:
        for device in opened.values():
            device.close()
