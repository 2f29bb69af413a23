"""How long an op takes if it runs as fast as arithmetic, memory and launch allow."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dlplacer.core.errors import InputError
from dlplacer.core.op import Op
from dlplacer.core.topology import Device
from dlplacer.machines.costs.device_table import DEVICE_TABLE, EFFICIENCY, FLOAT32


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak rates of a device; what is not known is left out.

    Attributes
    ----------
    flops_per_s
        Per dtype. A device that has one number for all dtypes lists it as float32.
    memory_bytes_per_s
        Of the device's own memory, or None.
    overhead_s
        Least time of an op that does anything.
    """

    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float | None
    overhead_s: float = 0.0

    def peak_flops_per_s(self, dtype: str | None) -> float | None:
        """The rate of a dtype; that of float32 if the dtype is None or not listed, as integers; None without either."""
        return self.flops_per_s.get(dtype or FLOAT32, self.flops_per_s.get(FLOAT32))

    def cover(self, op: Op) -> bool:
        """Whether every rate that the op's work needs is known."""
        computes = not op.flops or self.peak_flops_per_s(op.dtype) is not None
        return computes and (not op.bytes_accessed or self.memory_bytes_per_s is not None)


def roofline_s(op: Op, rates: Rates) -> float:
    """Δ(k) in seconds, by the roofline with a floor.

    An op of no FLOPs and no bytes takes 0: parameters, inputs, views. Any other takes ::

        Δ(k) = max(flops ÷ (0.70 · peak), bytes_accessed ÷ (0.70 · memory rate), overhead)

    The overhead is a floor and no addend, as in the published model of meta-pytorch/autoparallel: a GPU's launches
    overlap with the kernels before them, so that only ops shorter than a launch wait for it. An op that was contracted
    from several takes as long as they do one after another.

    Raises
    ------
    InputError
        If the rates do not cover the op.
    """
    parts = _parts(op)
    if parts:
        return sum(roofline_s(part, rates) for part in parts)
    if not op.flops and not op.bytes_accessed:
        return 0.0
    floors_s = [rates.overhead_s]
    if op.flops:
        peak = rates.peak_flops_per_s(op.dtype)
        if peak is None:
            raise InputError(
                f"op {op.id!r} computes {op.flops:g} FLOP in {op.dtype or FLOAT32}, and the device has no rate for "
                f"{op.dtype or FLOAT32} nor {FLOAT32}; add it to the device's 'flops_per_s'"
            )
        floors_s.append(op.flops / (EFFICIENCY.value * peak))
    if op.bytes_accessed:
        if rates.memory_bytes_per_s is None:
            raise InputError(
                f"op {op.id!r} moves {op.bytes_accessed:g} bytes, and the device has no memory rate; give it "
                "'memory_bytes_per_s'"
            )
        floors_s.append(op.bytes_accessed / (EFFICIENCY.value * rates.memory_bytes_per_s))
    return max(floors_s)


def _parts(op: Op) -> list[Op]:
    """The ops that run one after another inside a contracted one, scaled to what it does in all."""
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


def rates_of_type(device_type: str) -> Rates | None:
    """The rates of a type by the device table, or None if the table does not have it."""
    entry = DEVICE_TABLE.get(device_type)
    if entry is None:
        return None
    return Rates(
        {dtype: figure.value for dtype, figure in entry.flops_per_s.items()},
        entry.memory_bytes_per_s.value,
        entry.overhead_s.value,
    )


def rates_of(device: Device) -> Rates | None:
    """The rates of a device, or None if neither the topology nor the device table gives any.

    What the topology says goes before the table: one number replaces all rates of the type, an object only those of the
    dtypes that it lists. The overhead is `dispatch_s` of a device to which ops are issued ahead, where given. Else it
    is that of the type, or of the type before the first hyphen: what launches on an A100-PCIe launches on an A100.
    """
    family = rates_of_type(device.type) or rates_of_type(device.type.partition("-")[0])
    overhead_s = 0.0 if family is None else family.overhead_s
    if device.asynchronous and device.dispatch_s is not None:
        overhead_s = device.dispatch_s
    table = rates_of_type(device.type)
    if device.flops_per_s is None and device.memory_bytes_per_s is None:
        return None if table is None else replace(table, overhead_s=overhead_s)
    table = table or Rates({}, None)
    flops_per_s: Mapping[str, float]
    if device.flops_per_s is None:
        flops_per_s = table.flops_per_s
    elif isinstance(device.flops_per_s, Mapping):
        flops_per_s = {**table.flops_per_s, **device.flops_per_s}
    else:
        flops_per_s = {FLOAT32: device.flops_per_s}
    return Rates(flops_per_s, device.memory_bytes_per_s or table.memory_bytes_per_s, overhead_s)
