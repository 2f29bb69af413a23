"""Roofline times for the ops of a graph that have no time."""

import math
from collections.abc import Mapping
from dataclasses import replace

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.topology import Device, Topology
from dlplacer.machines.costs.device_table import known_type, unknown_type
from dlplacer.machines.costs.roofline import Rates, rates_of, roofline_s


def with_times(graph: OpGraph, topology: Topology) -> OpGraph:
    """The graph with a time for every op on every device type of the topology where the op may run.

    Times in the graph are kept, and the roofline gives the missing ones. An op whose rates are not known stays without
    a time (`dlplacer.problem.problem.build_problem` reports that). If no time is added, `graph` itself is returned.

    Raises InputError if two devices of one type have different rates.
    """
    types: dict[str, list[Device]] = {}
    for device in topology.devices:
        types.setdefault(device.type, []).append(device)
        _require_equal_rates(types[device.type][0], device)
    rates = {}
    for name, devices in types.items():
        # The issue cost of the process that issues fastest counts for all devices of a type.
        first = min(devices, key=lambda device: math.inf if device.dispatch_s is None else device.dispatch_s)
        if (found := rates_of(first)) is not None:
            rates[name] = found

    def completed(op: Op) -> Op:
        allowed = [
            name
            for name in rates
            if op.devices is None or any(name in op.devices or device.id in op.devices for device in types[name])
        ]
        return _with_missing(op, {name: rates[name] for name in allowed})

    ops = tuple(map(completed, graph.ops))
    changed = any(new is not old for new, old in zip(ops, graph.ops, strict=True))
    return replace(graph, ops=ops) if changed else graph


def with_roofline_times(graph: OpGraph, device_type: str) -> OpGraph:
    """The graph with a time for every op on a type of the device table, in any spelling; existing times are kept.

    Raises InputError if the table does not have the type.
    """
    kind = known_type(device_type)
    if kind is None:
        raise InputError(f"{unknown_type(device_type)} Or profile the model on such a device")
    return with_times(graph, Topology((Device(kind, kind),)))


def required_time_s(op: Op, device_type: str) -> float:
    """The op's time Δ(k) in seconds on a device type; raises InputError if it has none."""
    time_s = op.time_on(device_type)
    if time_s is None:
        raise InputError(
            f"op {op.id!r} has no time on a {device_type!r}; profile the model on one, or give the device's rates"
        )
    return time_s


def _with_missing(op: Op, rates: Mapping[str, Rates]) -> Op:
    added = {
        device_type: roofline_s(op, known)
        for device_type, known in rates.items()
        if op.time_on(device_type) is None and known.cover(op)
    }
    given = op.time_s if isinstance(op.time_s, Mapping) else {}
    return replace(op, time_s={**given, **added}) if added else op


def _require_equal_rates(first: Device, second: Device) -> None:
    for name in ("flops_per_s", "memory_bytes_per_s"):
        ours, theirs = getattr(first, name), getattr(second, name)
        if ours != theirs:
            raise InputError(
                f"devices {first.id!r} and {second.id!r} are both of type {first.type!r}, but {name} is {ours} on one "
                f"and {theirs} on the other: make them equal, or give them different types"
            )
