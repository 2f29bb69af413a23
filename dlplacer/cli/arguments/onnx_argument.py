"""ONNX files on the command line: as MODEL of solve, compare, profile and run."""

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dlplacer.cli.arguments.problem_options import CAPTURE_OPTIONS, given_options
from dlplacer.cli.output.profile_summary import tell_profile
from dlplacer.cli.output.progress import progress
from dlplacer.cli.output.tables import new_table, print_table
from dlplacer.core.errors import InputError

if TYPE_CHECKING:
    from dlplacer.core.graph import OpGraph
    from dlplacer.core.plan import Plan
    from dlplacer.runtime.onnx.session import OnnxDevice

_CORE = re.compile(r"cpu(?::(\d+))?")
_DEVICE = re.compile(r"([a-z]+)(?::(\d+))?")


def add_dim_option(group: "argparse._ArgumentGroup") -> None:
    """Sizes for symbolic axes."""
    group.add_argument(
        "--dim",
        action="append",
        metavar="AXIS=N",
        help="size of a symbolic axis of an ONNX file, as batch=8 or input:0=8; repeat for several",
    )


def is_onnx(name: str) -> bool:
    """Whether an argument means an ONNX file."""
    return name.lower().endswith(".onnx")


def is_onnx_plan(plan: "Plan") -> bool:
    """Whether a plan was made from an ONNX file."""
    return "onnx" in (plan.graph.capture or {})


def graph_of_onnx(arguments: argparse.Namespace) -> "OpGraph":
    """The graph of the ONNX file given as MODEL.

    Raises
    ------
    InputError
        If an option is given that a model in torch has and a file has not.
    """
    from dlplacer.frontend.onnx import onnx_graph, read_onnx

    for option in given_options(arguments, CAPTURE_OPTIONS):
        raise InputError(f"{option} is for models in torch; an ONNX file takes --dim, as in --dim batch=8")
    return onnx_graph(read_onnx(arguments.model, _dims(arguments.dim)))


def profile_onnx_file(arguments: argparse.Namespace) -> int:
    """``dlplacer profile`` of an ONNX file: times by onnxruntime on one core."""
    from dlplacer.frontend.onnx.onnx_file import read_onnx
    from dlplacer.runtime.onnx.session_times import profile_onnx
    from dlplacer.runtime.profile.op_times import with_measured_times

    for device in arguments.device.split(","):
        if not _CORE.fullmatch(device.strip()):
            raise InputError(f"device {device!r}: ONNX files are timed on CPU cores here; write cpu:0")
    file = read_onnx(arguments.model, _dims(arguments.dim), with_weights=True)
    graph = graph_of_onnx(arguments)
    with progress("profiling"):
        times = profile_onnx(file, graph, arguments.steps, arguments.warmup)
    tell_profile(arguments, with_measured_times(graph, times), times)
    return 0


def run_onnx_plan(arguments: argparse.Namespace, plan: "Plan") -> int:
    """``dlplacer run`` of a plan of an ONNX file: cut by device, alternating with the whole model on the first one."""
    from dlplacer.frontend.onnx.onnx_file import read_onnx
    from dlplacer.runtime.onnx.run_cut_model import run_onnx

    for option in given_options(arguments, ("gantt", "trace", "html", "replicas")):
        raise InputError(f"{option} is for models in torch; leave it out, the plan is of an ONNX file")

    described = plan.graph.capture or {}
    bound = {**described["onnx"].get("dims", {}), **_dims(arguments.dim)}
    path = Path(arguments.model or described["entry"])
    devices = _devices(arguments.devices, [device.id for device in plan.topology.devices], arguments.provider)
    with progress("running"):
        report = run_onnx(read_onnx(path, bound, with_weights=True), plan, arguments.steps, arguments.warmup, devices)
    if arguments.json:
        print(json.dumps(report.to_dict()))
        return 0
    table = new_table("one inference", "seconds", "speedup", title=f"{plan.graph.name}, {report.parts} parts")
    table.add_row("plan", f"{report.predicted_s:.4f}", "")
    table.add_row("whole model, one device", f"{report.baseline_s:.4f}", "1.000x")
    table.add_row("cut by device", f"{report.measured_s:.4f}", f"{report.measured_speedup:.3f}x")
    print_table(table)
    print(f"largest difference to the whole model's outputs {report.max_abs_error:g}")
    return 0


def _dims(given: list[str] | None) -> dict[str, int]:
    dims: dict[str, int] = {}
    for entry in given or ():
        name, separator, size = entry.rpartition("=")
        if not separator or not name or not size.isdecimal():
            raise InputError(f"--dim {entry!r} is not understood; write AXIS=N, as in batch=8 or input:0=8")
        dims[name] = int(size)
    return dims


def _devices(devices: str, names: list[str], provider: str | None) -> "dict[str, OnnxDevice]":
    """Device name in the plan → device, from ``cpu:0,cpu:1``, or ``cuda:0,cuda:1`` and a provider."""
    from dlplacer.runtime.onnx.session import OnnxDevice, provider_named

    given = [device.strip() for device in devices.split(",")]
    matches = [_DEVICE.fullmatch(device) for device in given]
    cores = sum(_CORE.fullmatch(device) is not None for device in given)
    if len(given) != len(names) or None in matches or (provider is None and cores < len(given)):
        raise InputError(
            f"--devices {devices!r}: the plan has {len(names)} devices, and ONNX plans run on CPU cores unless there "
            f"is a --provider; write {','.join(f'cpu:{number}' for number in range(len(names)))}"
        )
    named = None if provider is None else provider_named(provider)
    found = [
        OnnxDevice(int(match[2] or 0), None if match[1] == "cpu" else named) for match in matches if match is not None
    ]
    if len(set(found)) != len(found):
        raise InputError(f"--devices {devices!r}: a device is given twice; every device of the plan needs its own")
    return dict(zip(names, found, strict=True))
