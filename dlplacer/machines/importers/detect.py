"""This machine as a topology."""

from dlplacer.core.topology import Topology
from dlplacer.machines.importers.host import host_topology
from dlplacer.machines.importers.nvml import has_gpus, nvml_topology


def detected_topology(kind: str = "auto") -> Topology:
    """The GPUs of this host or, without any, the cores of this process.

    Parameters
    ----------
    kind
        ``gpu``, ``cpu``, or ``auto``.

    Raises
    ------
    InputError
        If there are no GPUs and ``gpu`` is asked for.
    """
    gpus = kind == "gpu" or (kind == "auto" and has_gpus())
    return nvml_topology() if gpus else host_topology()
