"""The roofline time of an op, bound by arithmetic, memory or launch, and the cost of issuing it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dlplacer.core.errors import InputError
from dlplacer.core.op import Op
from dlplacer.core.topology import Device, Topology
from dlplacer.machines.costs.device_table import DEVICE_TABLE, EFFICIENCY, FLOAT32, overhead_of


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak rates of a device; unknown ones are left out.

    `flops_per_s`: Rate per dtype. A device with one number for all dtypes lists it as float32.
    """

    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float | None
    overhead_s: float = 0.0

    def peak_flops_per_s(self, dtype: str | None) -> float | None:
        """The rate of a dtype, or of float32 if the dtype is None or not listed; None if both are missing."""
        return self.flops_per_s.get(dtype or FLOAT32, self.flops_per_s.get(FLOAT32))

    def cover(self, op: Op) -> bool:
        """True if every rate that the op's work needs is known."""
        computes = not op.flops or self.peak_flops_per_s(op.dtype) is not None
        return computes and (not op.bytes_accessed or self.memory_bytes_per_s is not None)


def roofline_s(op: Op, rates: Rates) -> float:
    """The op's time Δ(k) in seconds, by the roofline with a floor.

    An op without FLOPs and bytes (a parameter, an input, a view) takes 0. Any other op takes ::

        Δ(k) = max(flops ÷ (0.70 · peak), bytes_accessed ÷ (0.70 · memory rate), overhead)

    The overhead is a floor and is not added, as in the published model of meta-pytorch/autoparallel. A GPU's launches
    overlap with earlier kernels, so only an op shorter than a launch waits for it. An op that was contracted from
    several ops takes as long as these ops in series.

    Raises InputError if the rates do not cover the op.
    """
    parts = _parts(op)
    if parts:
        return sum(roofline_s(part, rates) for part in parts)
    if not op.flops and not op.bytes_accessed:
        return 0.0
    if not rates.cover(op):
        kinds = " or ".join(dict.fromkeys((op.dtype or FLOAT32, FLOAT32)))
        raise InputError(
            f"op {op.id!r} computes {op.flops:g} FLOP in {op.dtype or FLOAT32} and moves {op.bytes_accessed:g} bytes, "
            f"and the device lacks a rate for {kinds}, or its memory; add 'flops_per_s' or 'memory_bytes_per_s'"
        )
    floors_s = [rates.overhead_s]
    if op.flops:
        floors_s.append(op.flops / (EFFICIENCY.value * (rates.peak_flops_per_s(op.dtype) or 0.0)))
    if op.bytes_accessed:
        floors_s.append(op.bytes_accessed / (EFFICIENCY.value * (rates.memory_bytes_per_s or 0.0)))
    return max(floors_s)


def _parts(op: Op) -> list[Op]:
    """The ops that run in series inside a contracted op, scaled to its total work."""
    given = op.attrs.get("parts", ())
    flops, moved_bytes = sum(part[0] for part in given), sum(part[1] for part in given)
    return [
        Op(
            op.id,
            op.kind,
            flops=part[0] * op.flops / flops if flops else 0,
            bytes_accessed=part[1] * op.bytes_accessed / moved_bytes if moved_bytes else 0,
            dtype=part[2],
        )
        for part in given
    ]


def rates_of(device: Device) -> Rates | None:
    """The rates of a device, or None if neither the topology nor the device table gives any.

    The topology's own rates take precedence over the table: one number replaces all rates of the type; an object
    replaces only its dtypes' rates. The overhead of an asynchronous device is its `dispatch_s`, if given. Otherwise
    the overhead is that of the kind, GPU or core, even if the table lacks the type.
    """
    table = DEVICE_TABLE.get(device.type)
    if table is None and device.flops_per_s is None and device.memory_bytes_per_s is None:
        return None
    flops_per_s: Mapping[str, float] = {} if table is None else table.flops_per_s
    if isinstance(device.flops_per_s, Mapping):
        flops_per_s = {**flops_per_s, **device.flops_per_s}
    elif device.flops_per_s is not None:
        flops_per_s = {FLOAT32: device.flops_per_s}
    told = device.dispatch_s if device.asynchronous else None
    return Rates(
        flops_per_s,
        device.memory_bytes_per_s or (table.memory_bytes_per_s if table else None),
        overhead_of(device).value if told is None else told,
    )


ISSUES = ("none", "eager")
"""Assumptions about issue costs that the topology does not give: none, or one Python process that calls every op."""


def with_issue(topology: Topology, issue: str) -> Topology:
    """The machine, with issue costs for its devices if `issue` is ``eager``; costs in the topology itself stay."""
    if issue not in ISSUES:
        raise InputError(f"issue is {issue!r}; use one of {', '.join(ISSUES)}")
    if issue == "none":
        return topology
    return replace(topology, devices=tuple(map(_issued, topology.devices)))


def _issued(device: Device) -> Device:
    """The device with its least op time as `dispatch_s`, unless it has one or runs ops inside the issuing call."""
    # Any rate gives a device without known rates the overhead of its kind.
    rates = rates_of(device) or rates_of(replace(device, flops_per_s=1.0))
    if device.dispatch_s is not None or not device.asynchronous or rates is None or not rates.overhead_s:
        return device
    return replace(device, dispatch_s=rates.overhead_s, process=device.process or "python")
