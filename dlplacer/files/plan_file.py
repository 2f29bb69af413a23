"""Plan files, format ``dlplacer.plan/1``."""

from collections.abc import Iterator
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from dlplacer.core.expect import expect, expect_path
from dlplacer.core.options import CHOICES, Options
from dlplacer.core.plan import DeviceMemory, Plan, ScheduledOp, Transfer, TransferSegment
from dlplacer.files import graph_file, topology_file
from dlplacer.files.fields import (
    Bytes,
    FileModel,
    ListOf,
    Name,
    Seconds,
    Table,
    built,
    format_mistake,
    load_model,
    parse_model,
)
from dlplacer.files.graph_file import GraphModel, graph_to_dict
from dlplacer.files.text import write_json
from dlplacer.files.topology_file import TopologyModel, topology_to_dict

KIND, VERSION = "plan", 1


def _of_format(kind: str, version: int) -> BeforeValidator:
    def require(value: Any) -> Any:
        mistake = format_mistake(value.get("format"), kind, version) if isinstance(value, dict) else None
        if mistake is not None:
            raise ValueError(f"format {mistake}")
        return value

    return BeforeValidator(require)


class ProblemModel(FileModel):
    graph: Annotated[GraphModel, _of_format(graph_file.KIND, graph_file.VERSION)]
    topology: Annotated[TopologyModel, _of_format(topology_file.KIND, topology_file.VERSION)]
    options: dict[str, str]
    meta: Table


class ScheduledModel(FileModel):
    op: Name
    device: Name
    start_s: Seconds
    end_s: Seconds
    meta: Table


class SegmentModel(FileModel):
    route: Annotated[list[Annotated[list[str], Field(min_length=2, max_length=2)]], Field(min_length=1)]
    start_s: Seconds
    end_s: Seconds


class TransferModel(FileModel):
    tensor: Name
    source: Name
    target: Name
    bytes: Bytes
    segments: Annotated[list[SegmentModel], Field(min_length=1)]
    meta: Table

    def to_transfer(self) -> Transfer:
        segments = tuple(
            TransferSegment(tuple((hop[0], hop[1]) for hop in segment.route), segment.start_s, segment.end_s)
            for segment in self.segments
        )
        return Transfer(self.tensor, self.source, self.target, self.bytes, segments)


class MemoryModel(FileModel):
    capacity_bytes: Bytes | None
    peak_bytes: Bytes


class PlanModel(FileModel):
    graphs_at: ClassVar[tuple[tuple[str, ...], ...]] = (("problem", "graph"), ("problem", "topology"))

    format: str
    name: str = ""
    source: str = ""
    problem: ProblemModel
    status: Literal["optimal", "feasible"]
    makespan_s: Seconds
    lower_bound_s: Seconds
    gap: Annotated[float, Field(ge=0, le=1)]
    rounding_s: Seconds = 0.0
    method: str
    solve_s: Seconds = 0.0
    ops: list[ScheduledModel]
    transfers: ListOf[TransferModel]
    memory: Annotated[dict[str, MemoryModel], Field(default_factory=dict)]
    provenance: Table
    meta: Table

    def mistakes(self) -> Iterator[str]:
        problem = self.problem
        yield from (f"problem.graph.{mistake}" for mistake in problem.graph.mistakes())
        yield from (f"problem.topology.{mistake}" for mistake in problem.topology.mistakes())
        for name, value in problem.options.items():
            if name not in CHOICES:
                yield f"problem.options.{name}: unknown option; use {', '.join(CHOICES)}"
            elif value not in CHOICES[name]:
                yield f"problem.options.{name}: is {value!r}; use one of {', '.join(CHOICES[name])}"

    def located(self) -> Iterator[str]:
        yield from (f"problem.graph.{mistake}" for mistake in self.problem.graph.located())
        yield from (f"problem.topology.{mistake}" for mistake in self.problem.topology.located())

    def to_plan(self) -> Plan:
        return Plan(
            graph=self.problem.graph.to_graph(),
            topology=self.problem.topology.to_topology(),
            options=Options(**self.problem.options),
            status=self.status,
            makespan_s=self.makespan_s,
            lower_bound_s=self.lower_bound_s,
            gap=self.gap,
            rounding_s=self.rounding_s,
            method=self.method,
            solve_s=self.solve_s,
            ops=tuple(ScheduledOp(entry.op, entry.device, entry.start_s, entry.end_s) for entry in self.ops),
            transfers=tuple(entry.to_transfer() for entry in self.transfers),
            memory={name: DeviceMemory(entry.capacity_bytes, entry.peak_bytes) for name, entry in self.memory.items()},
            provenance=self.provenance,
            meta=self.meta,
        )


def read_plan(path: Path) -> Plan:
    """The plan in a file; it is well formed, but `check` has not seen it.

    Raises
    ------
    FileFormatError
        With every mistake and its path.
    """
    content = load_model(path, PlanModel, KIND, VERSION)
    return built(str(path), content.to_plan, located=content.located)


def plan_of_dict(value: Any, where: str) -> Plan:
    """The plan that `plan_to_dict` made this object of; `where` names it in an error, which is as of `read_plan`."""
    content = parse_model(value, PlanModel, KIND, VERSION, where)
    return built(where, content.to_plan, located=content.located)


def write_plan(path: str | PathLike[str], plan: Plan) -> None:
    """Write a plan file atomically.

    Raises
    ------
    InputError
        If the file cannot be written, or an argument is of a wrong type.
    """
    expect_path(path)
    expect("", "plan", plan, Plan, "an object of class Plan")
    write_json(path, plan_to_dict(plan))


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The JSON object of a plan file."""
    value: dict[str, Any] = {"format": f"dlplacer.{KIND}/{VERSION}"}
    for name in ("status", "makespan_s", "lower_bound_s", "gap", "rounding_s", "method", "solve_s"):
        value[name] = getattr(plan, name)
    value["memory"] = {name: asdict(memory) for name, memory in plan.memory.items()}
    value["provenance"] = dict(plan.provenance)
    if plan.meta:
        value["meta"] = dict(plan.meta)
    value["ops"] = [
        {"op": entry.op, "device": entry.device, "start_s": entry.start_s, "end_s": entry.end_s} for entry in plan.ops
    ]
    value["transfers"] = [_transfer_to_dict(transfer) for transfer in plan.transfers]
    value["problem"] = {
        "options": plan.options.to_dict(),
        "topology": topology_to_dict(plan.topology),
        "graph": graph_to_dict(plan.graph),
    }
    return value


def _transfer_to_dict(transfer: Transfer) -> dict[str, Any]:
    return {
        "tensor": transfer.tensor,
        "source": transfer.source,
        "target": transfer.target,
        "bytes": transfer.bytes,
        "segments": [
            {
                "route": [list(hop) for hop in segment.route],
                "start_s": segment.start_s,
                "end_s": segment.end_s,
            }
            for segment in transfer.segments
        ],
    }
