"""The links of this machine, timed on its own devices."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dlplacer.core.topology import Topology
from dlplacer.machines.costs.device_table import TURN, is_core
from dlplacer.machines.importers.measured_links import measured
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import KINDS, in_host_memory, open_devices
from dlplacer.runtime.profile.dispatch_time import dispatch_of_devices_s
from dlplacer.runtime.profile.link_times import copy_timer


def with_timed_links(topology: Topology, on_copy: Callable[[str, str], None] = lambda source, target: None) -> Topology:
    """A detected topology with latency and rate of every link by timed copies, where these agree on them.

    See `dlplacer.machines.importers.measured_links.measured`. What issuing an op costs is timed too: a call
    among cores of this process, or the launch overhead of the first device of another kind.

    Parameters
    ----------
    topology
        As `dlplacer.machines.importers.detect.detected_topology` finds it, its devices in this machine's order.
    on_copy
        Called with the ends of a link before a copy over it is timed.
    """
    on_cores = is_core(topology.devices[0])
    kind = max((one for one in KINDS.values() if one.in_host_memory == on_cores), key=lambda one: one.count())
    names = [f"{kind.torch_type}:{place}" for place in range(len(topology.devices))]
    opened = dict(zip(topology.device_index, open_devices(names), strict=True))
    copy_s = copy_timer(opened)

    def timed(source: str, target: str, size_bytes: int) -> float:
        on_copy(source, target)
        return copy_s(source, target, size_bytes)

    try:
        linked = measured(topology, timed, shared_memory=in_host_memory(opened.values()))
        return with_timed_dispatch(linked, list(opened.values()))
    finally:
        for device in opened.values():
            device.close()


def with_timed_dispatch(topology: Topology, opened: Sequence[RuntimeDevice]) -> Topology:
    """The machine of these devices, with what issuing an op to them costs: cores are threads of one process."""
    # Three digits: it varies by a tenth from one run to the next.
    dispatch_s = float(f"{dispatch_of_devices_s(opened):.3g}")
    return _with_dispatch(topology, opened, dispatch_s, "timed with a chain of short ones")


def with_usual_dispatch(topology: Topology, opened: Sequence[RuntimeDevice]) -> Topology:
    """The machine of these devices, with the issue cost of cores of one process on the machine of the device table.

    What issuing an op to other devices costs is left open.
    """
    return _with_dispatch(topology, opened, TURN.value if in_host_memory(opened) else 0.0, "of a generic host")


def _with_dispatch(topology: Topology, opened: Sequence[RuntimeDevice], dispatch_s: float, how: str) -> Topology:
    if not dispatch_s:
        return topology
    issue: dict[str, Any] = {"dispatch_s": dispatch_s}
    if in_host_memory(opened):
        issue |= {"process": "host", "asynchronous": False}
    return replace(
        topology,
        devices=tuple(replace(device, **issue) for device in topology.devices),
        source=f"{topology.source}; issue of an op {how}",
    )
