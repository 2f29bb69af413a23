"""Plan files, format ``dlplacer.plan/1``."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from dlplacer.errors import FileFormatError
from dlplacer.files.fields import Bytes, FileModel, Meta, Name, Seconds, built, load_model
from dlplacer.files.graph_file import graph_from_dict, graph_to_dict
from dlplacer.files.text import write_json
from dlplacer.files.topology_file import topology_from_dict, topology_to_dict
from dlplacer.options import Options
from dlplacer.plan import DeviceMemory, Plan, ScheduledOp, Segment, Transfer

KIND, VERSION = "plan", 1


class ProblemModel(FileModel):
    graph: dict[str, Any]
    topology: dict[str, Any]
    options: dict[str, str]
    meta: Meta = {}


class ScheduledModel(FileModel):
    op: Name
    device: Name
    start_s: Seconds
    end_s: Seconds
    meta: Meta = {}


class SegmentModel(FileModel):
    route: list[Annotated[list[str], Field(min_length=2, max_length=2)]]
    start_s: Seconds
    end_s: Seconds


class TransferModel(FileModel):
    tensor: Name
    source: Name
    target: Name
    bytes: Bytes
    segments: Annotated[list[SegmentModel], Field(min_length=1)]
    meta: Meta = {}


class MemoryModel(FileModel):
    capacity_bytes: Bytes | None
    peak_bytes: Bytes


class PlanModel(FileModel):
    format: str
    problem: ProblemModel
    status: Literal["optimal", "feasible"]
    makespan_s: Seconds
    lower_bound_s: Seconds
    gap: Annotated[float, Field(ge=0, le=1)]
    rounding_s: Seconds = 0.0
    method: str
    solve_s: Seconds = 0.0
    ops: list[ScheduledModel]
    transfers: list[TransferModel] = []
    memory: dict[str, MemoryModel] = {}
    provenance: dict[str, Any] = {}
    meta: Meta = {}


def read_plan(path: Path) -> Plan:
    """The plan in a file; it is well formed, but `check` has not seen it.

    Raises
    ------
    FileFormatError
        With every mistake and its path.
    """
    where = str(path)
    model = load_model(path, PlanModel, KIND, VERSION)
    graph = graph_from_dict(model.problem.graph, f"{where}: problem.graph")
    topology = topology_from_dict(model.problem.topology, f"{where}: problem.topology")
    unknown = sorted(set(model.problem.options) - set(Options().to_dict()))
    if unknown:
        raise FileFormatError(where, [f"problem.options.{name}: unknown option; remove it" for name in unknown])
    return Plan(
        graph=graph,
        topology=topology,
        options=built(where, lambda: Options(**model.problem.options)),
        status=model.status,
        makespan_s=model.makespan_s,
        lower_bound_s=model.lower_bound_s,
        gap=model.gap,
        rounding_s=model.rounding_s,
        method=model.method,
        solve_s=model.solve_s,
        ops=tuple(ScheduledOp(entry.op, entry.device, entry.start_s, entry.end_s) for entry in model.ops),
        transfers=tuple(_to_transfer(entry) for entry in model.transfers),
        memory={name: DeviceMemory(entry.capacity_bytes, entry.peak_bytes) for name, entry in model.memory.items()},
        provenance=model.provenance,
        meta=model.meta,
    )


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan file atomically."""
    write_json(path, plan_to_dict(plan))


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The JSON object of a plan file."""
    value: dict[str, Any] = {"format": f"dlplacer.{KIND}/{VERSION}"}
    for name in ("status", "makespan_s", "lower_bound_s", "gap", "rounding_s", "method", "solve_s"):
        value[name] = getattr(plan, name)
    value["memory"] = {
        name: {"capacity_bytes": memory.capacity_bytes, "peak_bytes": memory.peak_bytes}
        for name, memory in plan.memory.items()
    }
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


def _to_transfer(entry: TransferModel) -> Transfer:
    segments = tuple(
        Segment(tuple((hop[0], hop[1]) for hop in segment.route), segment.start_s, segment.end_s)
        for segment in entry.segments
    )
    return Transfer(entry.tensor, entry.source, entry.target, entry.bytes, segments)


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
