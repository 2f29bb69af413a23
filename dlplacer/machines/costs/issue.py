"""The cost of issuing an op where the topology does not give one: eager PyTorch, one process for all devices."""

from dataclasses import replace

from dlplacer.core.errors import InputError
from dlplacer.core.topology import Device, Topology
from dlplacer.machines.costs.roofline import rates_of

ISSUES = ("none", "eager")
"""What a plan assumes of issuing where the topology is silent: nothing, or one Python process that calls every op."""


def with_issue(topology: Topology, issue: str) -> Topology:
    """The machine with issue costs for its devices, if they are to count; costs in the topology itself stay."""
    if issue not in ISSUES:
        raise InputError(f"issue is {issue!r}; use one of {', '.join(ISSUES)}")
    if issue == "none":
        return topology
    return replace(topology, devices=tuple(_issued(device) for device in topology.devices))


def _issued(device: Device) -> Device:
    """The device with the time of a kernel launch, unless its ops run inside the call that issues them."""
    # With a rate, a device that has none of its own gets the overhead of its kind.
    rates = rates_of(device) or rates_of(replace(device, flops_per_s=1.0))
    if device.dispatch_s is not None or not device.asynchronous or rates is None or not rates.overhead_s:
        return device
    return replace(device, dispatch_s=rates.overhead_s, process=device.process or "python")
