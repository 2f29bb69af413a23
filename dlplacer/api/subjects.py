"""Conversion of arguments to values: names and paths of files, jobs, results, option words."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, Union

from dlplacer.check import violations
from dlplacer.check.placement import every_op_once
from dlplacer.core.errors import CheckError, DlplacerWarning, InputError
from dlplacer.core.expect import refuse
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import CHOICES, Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Topology
from dlplacer.files.load import load_graph, load_plan, load_topology
from dlplacer.machines.importers.products import machine_notes
from dlplacer.planning.constrain import tuple_of
from dlplacer.planning.result import Result

if TYPE_CHECKING:
    from dlplacer.frontend.torch.job import Job
    from dlplacer.measure.run_report import Run
    from dlplacer.measure.splitting import SplitResult
    from dlplacer.runtime.devices.base import NamedDevice

_DEVICES = "names of devices, such as 'cpu:0' or 'cuda:1'"

Name: TypeAlias = str | PathLike[str]
"""A path, or the name of a shipped graph or topology."""

GraphLike: TypeAlias = Union[OpGraph, "Job", Name]
"""A graph, a job to capture or its ``module:callable``, a graph or ONNX file, or the name of a shipped graph."""

TopologyLike: TypeAlias = Topology | Name
"""A topology, the path of its file, or the name of a shipped topology."""

OptionsLike: TypeAlias = Options | str | Mapping[str, str] | None
"""Options, ``"paper"``, or a dict from options to values; None means the defaults."""

PlanLike: TypeAlias = Union[Plan, Result, "SplitResult", "Run", Name]
"""A plan, a result that has one, a run (its predicted step is the plan), or a plan file."""

DevicesLike: TypeAlias = str | Sequence["NamedDevice"] | Mapping[str, "NamedDevice"] | None
"""Planned device → device of this machine, or devices in the plan's order; None derives them from the plan's types."""


def graph_of(value: GraphLike, name: str = "graph", step: Mapping[str, Any] | None = None) -> OpGraph:
    """The graph of an argument; jobs, their names and ONNX files are captured with the options of a step.

    Raises InputError if the argument is none of `GraphLike`, or there is no such file.
    """
    from dlplacer.api.jobs import capture, is_entry, is_onnx

    options, known = dict(step or {}), "it is captured already"
    if is_job(value):
        return capture(value, **options)
    if not isinstance(value, OpGraph):
        accepted = "an OpGraph, a dp.Job(module, args=...), the path of a graph or ONNX file, or a name that ships"
        text = _path(value, name, accepted)
        if is_onnx(text) or is_entry(text):
            return capture(text, **options)

        value, known = load_graph(text), f"{text!r} is a graph file"
    granularity = options.pop("granularity", "aten")
    for option, given in options.items():
        if given:
            raise InputError(f"{option} says how to capture a model, but {known}; drop it or give module:callable")
    if granularity == "aten":
        return value
    from dlplacer.planning.coarsen import coarsen

    return coarsen(value, granularity)


def topology_of(value: TopologyLike, name: str = "topology") -> Topology:
    """The topology of an argument; raises InputError if it is none of `TopologyLike`, or there is no such file."""
    if isinstance(value, Topology):
        return value

    return load_topology(_path(value, name, "a Topology, the path of a topology file, or the name of one that ships"))


def machine_of(value: TopologyLike, name: str = "topology") -> Topology:
    """Like `topology_of`, but warns about unlimited memory and assumed overheads."""
    topology = topology_of(value, name)
    note(*machine_notes(topology))
    return topology


def note(*texts: str | None) -> None:
    """Warn with each text that is not None: in Python as a warning, on the command line as a line on stderr."""
    for text in filter(None, texts):
        warnings.warn(text, DlplacerWarning, stacklevel=4)


def silent(*progress: Any) -> None:
    """Accept progress reports and show nothing."""


def options_of(value: OptionsLike, name: str = "options") -> Options:
    """The options of an argument; raises InputError for an unknown option or value."""
    if value is None or isinstance(value, Options):
        return value or Options()
    if value == "paper":
        return Options.paper()
    if isinstance(value, Mapping) and value.keys() <= CHOICES.keys():
        return Options(**value)
    raise refuse("", name, value, f'Options, "paper", or a dict such as {{"memory": "sum"}} of {", ".join(CHOICES)}')


def plan_of(value: PlanLike, name: str = "plan", *, keeps_rules: bool = False) -> Plan:
    """The plan of an argument: a result's plan, the plan with splits of a `SplitResult`, or a run's predicted step.

    Raises InputError like `graph_of`, and with `keeps_rules` CheckError if a file's plan breaks a rule.
    """
    if isinstance(value, Plan):
        return value
    if isinstance(value, Result):
        return value.plan
    if is_a(value, "dlplacer.measure.splitting", "SplitResult"):
        return value.split.plan  # type: ignore[union-attr]
    if is_run(value):
        return value.predicted
    path = _path(value, name, "a Plan, a Result (dp.place makes one), or the path of a plan file")
    plan = load_plan(path)
    if keeps_rules and (broken := violations(plan)):
        raise CheckError([str(violation) for violation in broken], path)
    return plan


def whole_plan_of(value: PlanLike, name: str = "plan") -> Plan:
    """The plan to draw or explain.

    Raises CheckError if a file's plan breaks a rule, or a `Plan` does not schedule every op once.
    """
    plan = plan_of(value, name, keeps_rules=True)
    if value is plan and (broken := [*every_op_once(plan)]):
        raise CheckError([str(violation) for violation in broken])
    return plan


def names_of(value: "str | Sequence[NamedDevice]", name: str = "devices") -> list[str]:
    """Names of devices of this machine, from a text such as ``"cpu:0,cpu:1"`` or a series of names or torch devices."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    entries = [value] if is_a(value, "torch", "device") else tuple_of("", name, value, object, _DEVICES)
    return [_device(entry, name) for entry in entries]


def devices_of(plan: Plan, value: DevicesLike, name: str = "devices") -> Mapping[str, str] | list[str]:
    """Devices of this machine for a plan's devices; None takes `default_devices`. Raises InputError for other types."""
    if value is None:
        return default_devices(plan)
    if isinstance(value, Mapping):
        return {str(planned): _device(here, name) for planned, here in value.items()}
    return names_of(value, name)


def default_devices(plan: Plan) -> list[str]:
    """``cpu:0``, ``cpu:1``, … for a plan's CPU cores, ``cuda:0``, … for its other devices, in the plan's order."""
    from dlplacer.runtime.devices.open import KINDS

    counts = dict.fromkeys(KINDS, 0)
    names = []
    for device in plan.topology.devices:
        # Types such as V100 or H100 run on the first kind, accelerators.
        kind = next((kind for kind in KINDS if device.type.startswith(kind)), next(iter(KINDS)))
        names.append(f"{kind}:{counts[kind]}")
        counts[kind] += 1
    return names


def is_job(value: object) -> "TypeGuard[Job]":
    """True for a `dlplacer.Job`; torch is not loaded for this, because without torch there are no jobs."""
    return is_a(value, "dlplacer.frontend.torch.job", "Job")


def is_run(value: object) -> "TypeGuard[Run]":
    """True for a result of `dlplacer.run`."""
    return is_a(value, "dlplacer.measure.run_report", "Run")


def is_a(value: object, module: str, name: str) -> bool:
    """True for an object of a class; False if the class's module is not loaded, because then no such object exists."""
    loaded = sys.modules.get(module)
    kind: Any = getattr(loaded, name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _device(value: object, name: str) -> str:
    if isinstance(value, str) or is_a(value, "torch", "device"):
        return str(value)
    raise refuse("", name, value, _DEVICES)


def _path(value: object, name: str, accepted: str) -> str:
    if not isinstance(value, (str, PathLike)):
        raise refuse("", name, value, accepted)
    text = fspath(value)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"{name} is {text!r}; give {accepted}")
    return text
