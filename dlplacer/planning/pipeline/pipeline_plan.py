"""A pipeline: its stages, its order, and its predicted times and memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlplacer.core.abilities import Shown
from dlplacer.core.expect import short_name
from dlplacer.core.table import Table
from dlplacer.core.units import format_seconds
from dlplacer.planning.pipeline.pipeline_timeline import PipelineTimeline
from dlplacer.planning.pipeline.schedules import Order

_TIMES, _SIZES = ("forward", "backward", "weight", "update"), ("memory", "sends", "returns")


@dataclass(frozen=True)
class Stage:
    """A contiguous part of the model on a device.

    Attributes
    ----------
    ops
        Its forward ops, weights among them, in an order in which they can run.
    forward_s, backward_s, weight_s
        Seconds per micro-batch; `weight_s` is the part of the backward that is for the weights alone.
    update_s
        Seconds per step of its optimizer ops.
    later
        Its backward ops that earlier stages wait for, those for its weights alone, and its optimizer ops.
    held
        Most micro-batches in flight.
    memory_bytes
        Weights, gradients, state, and what the micro-batches in flight keep.
    sends_bytes, returns_bytes
        Per micro-batch: activations to the next stage, gradients that come back from it.
    """

    device: str
    ops: tuple[str, ...]
    forward_s: float
    backward_s: float
    weight_s: float
    update_s: float
    held: int
    memory_bytes: int
    sends_bytes: int
    returns_bytes: int
    later: tuple[tuple[str, ...], ...] = ((), (), ())

    def to_dict(self) -> dict[str, Any]:
        """As in ``dlplacer pipeline --json``; ops are told by the first, the last and their number."""
        named = {
            name: getattr(self, name)
            for name in ("device", "forward_s", "backward_s", "weight_s", "update_s", "held", "memory_bytes")
        }
        sizes = {"sends_bytes": self.sends_bytes, "returns_bytes": self.returns_bytes}
        return {**named, **sizes, "op_count": len(self.ops), "ops": list(self.ops)}


@dataclass(frozen=True, repr=False)
class PipelinePlan(Shown):
    """Stages, schedule and prediction.

    Attributes
    ----------
    exact
        True if the split is that of least bottleneck among all contiguous ones on its devices, and all sequences of
        devices were compared, rather than a choice of either.
    bottleneck_s
        Seconds per micro-batch of the slowest stage or transfer.
    single_device_s
        The whole batch on the best single device; None if it fits on none.
    warnings
        Warnings of results that a step computes differently in micro-batches.
    """

    name: str
    stages: tuple[Stage, ...]
    schedule: str
    micro_batches: int
    order: Order
    timeline: PipelineTimeline
    exact: bool
    bottleneck_s: float
    single_device_s: float | None
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        faster = "" if self.speedup is None else f", speedup {self.speedup:.3f}x over the best single device"
        return (
            f"<PipelinePlan {short_name(self.name)}: {self.schedule}, {len(self.stages)} stages, "
            f"{self.micro_batches} micro-batches, {format_seconds(self.step_s)}{faster}>"
        )

    @property
    def step_s(self) -> float:
        """Predicted seconds of a step."""
        return self.timeline.step_s

    @property
    def speedup(self) -> float | None:
        """Best single device ÷ pipeline."""
        return None if self.single_device_s is None else self.single_device_s / self.step_s

    @property
    def devices(self) -> tuple[str, ...]:
        """[rank] → device."""
        return tuple(dict.fromkeys(stage.device for stage in self.stages))

    @property
    def stage_of(self) -> Mapping[str, int]:
        """Forward op → stage."""
        return {op: number for number, stage in enumerate(self.stages) for op in stage.ops}

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer pipeline --json`` prints, but for the comparison with op placement."""
        return {
            "name": self.name,
            "schedule": self.schedule,
            "micro_batches": self.micro_batches,
            "devices": list(self.devices),
            "step_s": self.step_s,
            "bubble": self.timeline.bubble,
            "bottleneck_s": self.bottleneck_s,
            "exact": self.exact,
            "single_device_s": self.single_device_s,
            "speedup": self.speedup,
            "warnings": list(self.warnings),
            "stages": [stage.to_dict() for stage in self.stages],
            "order": [[str(action) for action in actions] for actions in self.order],
        }

    @property
    def table(self) -> Table:
        """A row per stage: device, ops, seconds per micro-batch forward and backward, memory and messages in bytes."""
        heads = ("stage", "device", "ops", "last_op|last op", *(f"{name}_s|{name}|seconds" for name in _TIMES), "held")
        rows = (
            (
                *(number, stage.device, len(stage.ops), stage.ops[-1] if stage.ops else ""),
                *(getattr(stage, f"{name}_s") for name in _TIMES),
                stage.held,
                *(getattr(stage, f"{name}_bytes") for name in _SIZES),
            )
            for number, stage in enumerate(self.stages)
        )
        return Table.described(rows, *heads, *(f"{name}_bytes|{name}|bytes" for name in _SIZES), title=self.name)
