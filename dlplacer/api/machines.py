"""Machines: `detect_topology` and `import_topology`."""

import warnings
from os import PathLike
from pathlib import Path

from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect, expect_flag, expect_text
from dlplacer.core.topology import Topology

_KINDS = ("auto", "gpu", "cpu")


def detect_topology(kind: str = "auto", *, measure: bool = False) -> Topology:
    """This machine: its GPUs as NVML reports them or, without any, the CPU cores of this process.

    Parameters
    ----------
    kind
        ``gpu``, ``cpu``, or ``auto`` for GPUs where there are any.
    measure
        Whether to fit latency and rate of every link to timed copies, which takes some seconds. A link whose copies
        contradict each other keeps what was assumed, and its ``meta`` says why; a warning too.

    Raises
    ------
    InputError
        If there are no such devices.

    Examples
    --------
    >>> import dlplacer as dp
    >>> dp.detect_topology("cpu").device_types
    ('cpu-core',)
    """
    from dlplacer.machines.importers.detect import detected_topology

    expect_flag("", measure=measure)
    if kind not in _KINDS:
        raise InputError(f"kind is {kind!r}; use one of {', '.join(_KINDS)}")
    topology = detected_topology(kind)
    if not measure:
        return topology
    from dlplacer.machines.importers.measured_links import doubts
    from dlplacer.runtime.profile.link_times import with_timed_links

    timed = with_timed_links(topology)
    for doubt in doubts(timed):
        warnings.warn(doubt, stacklevel=2)
    return timed


def import_topology(path: str | PathLike[str], device_type: str | None = None) -> Topology:
    """The machine in an ``nvidia-smi topo -m`` text, an NCCL topology file or a node-link graph.

    Parameters
    ----------
    device_type
        Type of the devices where the file does not tell, as ``"V100"``; memory and rates come from the device table.

    Raises
    ------
    InputError
        If the file cannot be read, or there is no such type.
    FileFormatError
        If its content is none of these, with the place.

    Examples
    --------
    >>> import dlplacer as dp
    >>> dp.import_topology("topo.txt", "H100")  # doctest: +SKIP
    <Topology 'topo': 8 H100, 3 routers, 17 links>
    """
    from dlplacer.machines.importers.any_format import import_topology as import_file

    expect("", "path", path, (str, PathLike), "the path of a file that another tool wrote")
    expect_text("", optional=True, device_type=device_type)
    return import_file(Path(path), device_type)
