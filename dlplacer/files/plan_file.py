"""Plan files, format ``dlplacer.plan/1``."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from dlplacer.core.options import CHOICES, Options
from dlplacer.core.plan import STATUSES, DeviceMemory, Plan, ScheduledOp, Transfer
from dlplacer.core.record import Number, OneOf, Seconds
from dlplacer.files import graph_file, topology_file
from dlplacer.files.fields import FileModel, ListOf, Table, format_mistake, plain, read_value, without

KIND, VERSION = "plan", 1
_HEAD = ("status", "makespan_s", "lower_bound_s", "gap", "rounding_s", "method", "solve_s")


class ProblemFile(FileModel):
    """The problem that a plan answers."""

    graph: graph_file.GraphFile
    topology: topology_file.TopologyFile
    options: dict[str, str]
    meta: Table


class PlanFile(FileModel):
    """A plan file."""

    format: str
    name: str = ""
    source: str = ""
    problem: ProblemFile
    status: Annotated[str, OneOf(STATUSES)]
    makespan_s: Seconds
    lower_bound_s: Seconds
    gap: Annotated[float, Number(at_most=1)]
    rounding_s: Seconds = 0.0
    method: str
    solve_s: Seconds = 0.0
    ops: list[Annotated[ScheduledOp, without("meta")]]
    transfers: ListOf[Annotated[Transfer, without("meta")]]
    memory: Annotated[dict[str, DeviceMemory], Field(default_factory=dict)]
    provenance: Table
    meta: Table
    period_s: Seconds | None = None

    def mistakes(self) -> Iterator[str]:
        problem = self.problem
        for part, told in ((graph_file, problem.graph), (topology_file, problem.topology)):
            if (mistake := format_mistake(told.format, part.KIND, part.VERSION)) is not None:
                yield f"problem.{part.KIND}.format: {mistake}"
        yield from (f"problem.graph.{mistake}" for mistake in problem.graph.mistakes())
        for name, value in problem.options.items():
            if name not in CHOICES:
                yield f"problem.options.{name}: unknown option; use {', '.join(CHOICES)}"
            elif value not in CHOICES[name]:
                yield f"problem.options.{name}: is {value!r}; use one of {', '.join(CHOICES[name])}"

    def value(self) -> Plan:
        return Plan(
            self.problem.graph.value(),
            self.problem.topology.value(),
            Options(**self.problem.options),
            **{name: getattr(self, name) for name in (*_HEAD, "memory", "provenance", "meta", "period_s")},
            ops=tuple(self.ops),
            transfers=tuple(self.transfers),
        )


def read_plan(source: Any, where: str = "") -> Plan:
    """The plan in a file, given its path; with `where`, which names it in messages, in a JSON value.

    It is well formed, but not checked. Raises FileFormatError with every mistake and its path.
    """
    plan: Plan = read_value(source, PlanFile, KIND, VERSION, where)
    return plan


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The JSON object of a plan file."""
    value: dict[str, Any] = {"format": f"dlplacer.{KIND}/{VERSION}"}
    value |= {name: getattr(plan, name) for name in _HEAD}
    value |= {name: plain(getattr(plan, name)) for name in ("memory", "provenance", "meta", "ops", "transfers")}
    if plan.period_s is not None:
        value["period_s"] = plan.period_s
    if not plan.meta:
        del value["meta"]
    value["problem"] = {
        "options": plan.options.to_dict(),
        "topology": topology_file.topology_to_dict(plan.topology),
        "graph": graph_file.graph_to_dict(plan.graph),
    }
    return value
