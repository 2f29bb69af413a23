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


def eager_issue_s(device: Device) -> float:
    """Seconds in which a process issues an op for a device: a kernel launch, or 0 if the op runs inside the call."""
    if not device.asynchronous:
        return 0.0
    # With a rate, a device that has none of its own gets the overhead of its kind.
    rates = rates_of(device) or rates_of(replace(device, flops_per_s=1.0))
    return 0.0 if rates is None else rates.overhead_s


def _issued(device: Device) -> Device:
    seconds = eager_issue_s(device)
    if device.dispatch_s is not None or not seconds:
        return device
    return replace(device, dispatch_s=seconds, process=device.process or "python")
