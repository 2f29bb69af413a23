"""Jobs on this machine: `apply`, `profile`, `profile_splits`, `run`."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from dlplacer.api.jobs import is_entry, is_onnx, job_of, job_options, onnx_file, rewrites_of, sizes_of
from dlplacer.api.parameters import JobOptions, StepOptions, checked
from dlplacer.api.subjects import DevicesLike, GraphLike, PlanLike, devices_of, graph_of, names_of, plan_of, silent
from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan

if TYPE_CHECKING:
    from threading import Event

    from dlplacer.frontend.torch.capture import Captured
    from dlplacer.frontend.torch.job import Job
    from dlplacer.measure.run_report import Run
    from dlplacer.measure.splitting import SplitChoice
    from dlplacer.runtime.devices.base import NamedDevice, RuntimeDevice
    from dlplacer.runtime.onnx.run_cut_model import OnnxDevice, OnnxReport
    from dlplacer.runtime.placed.placed_module import PlacedModule
    from dlplacer.runtime.profile.op_times import Times

_CORE = re.compile(r"cpu(?::(\d+))?")
_ONNX_DEVICE = re.compile(r"([a-z]+)(?::(\d+))?")
_OWN_MODELS = "dlplacer.models:"


@checked
def apply(job: "Job", plan: PlanLike, devices: DevicesLike = None, *, segments: str = "eager") -> "PlacedModule":
    """The job's module, set up to run as planned, with its parameters moved to their planned devices.

    Raises CheckError if the plan breaks a rule; MismatchError if the plan was made for another graph, naming the
    first op that differs; InputError if a device is missing or not on this machine, or an argument has a wrong type.

    Examples
    --------
    >>> import torch
    >>> images, labels = torch.randn(8, 12), torch.randint(3, (8,))
    >>> module = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> job = dp.Job(module, args=(images,), targets=(labels,), loss=torch.nn.functional.cross_entropy)
    >>> result = dp.place(job, "cpu-2core", method="heft")
    >>> placed = dp.apply(job, result, "cpu:0,cpu:1")  # doctest: +SKIP
    >>> placed(images, labels).backward()  # doctest: +SKIP
    """
    from dlplacer.runtime.placed.apply import apply as apply_plan

    job, plan = job_of(job), plan_of(plan)
    return apply_plan(job, plan, devices_of(plan, devices), segments=segments)


@checked
def profile(
    job: "Job | str | PathLike[str]",
    devices: "str | Sequence[NamedDevice]",
    *,
    steps: int = 7,
    warmup: int = 2,
    calibration: str | PathLike[str] | None = None,
    on_progress: Callable[[str, float], None] = silent,
    **step: Unpack[StepOptions],
) -> OpGraph:
    """The job's graph with the seconds of every op, measured inside whole steps on devices of this machine.

    On CPU cores an LSTM is timed both as single ops and as plain PyTorch's kernel; the graph has the faster form.

    Examples
    --------
    >>> import torch
    >>> job = dp.Job(torch.nn.Linear(64, 64), args=(torch.randn(32, 64),), mode="infer")
    >>> graph = dp.profile(job, "cpu:0", steps=3)  # doctest: +SKIP
    >>> dp.place(graph, "cpu-2core").plan.makespan_s > 0  # doctest: +SKIP
    True
    """
    from dlplacer.planning.coarsen import coarsen
    from dlplacer.runtime.devices.open import in_host_memory
    from dlplacer.runtime.profile.machine_times import calibrate
    from dlplacer.runtime.profile.op_times import profile_ops, timed_capture, with_measured_times

    if isinstance(job, (str, PathLike)) and is_onnx(str(job)):
        return _profiled_onnx(job, names_of(devices), step.get("dims", ()), steps, warmup)
    from dlplacer.frontend.torch.capture import capture_job

    job = job_of(job, step)
    rewrites = rewrites_of(job, step)
    with _opened(devices) as opened:
        captured, times = timed_capture(
            job,
            lambda more: capture_job(job, [*rewrites, *more], step.get("colocate_backward", False)),
            lambda captured: profile_ops(job, captured, opened, steps, warmup, on_progress),
            in_host_memory(opened),
        )
        if calibration is not None:
            calibrate(Path(calibration), captured.graph, times, opened)
    return coarsen(with_measured_times(captured.graph, times), step.get("granularity", "aten"))


@checked
def profile_splits(
    job: "Job | str",
    devices: "str | Sequence[NamedDevice]",
    *,
    graph: GraphLike | None = None,
    parts: int | None = None,
    whole_backward: bool = False,
    steps: int = 7,
    warmup: int = 2,
    search_s: float = 30.0,
    on_progress: "Callable[[SplitChoice], None]" = silent,
    stop: "Event | None" = None,
    **options: Unpack[JobOptions],
) -> "SplitChoice":
    """The op splits that shorten the step with op times measured on these devices, and the graph with these splits.

    Examples
    --------
    >>> found = dp.profile_splits("dlplacer.models:branches", "cpu:0,cpu:1", search_s=5)  # doctest: +SKIP
    >>> found.split_s <= found.whole_s  # doctest: +SKIP
    True
    """
    from dlplacer.frontend.torch.capture import default_rewrites
    from dlplacer.measure.splitting import TracedStep, choose_splits, whole_graph
    from dlplacer.planning.place import place
    from dlplacer.runtime.profile.machine_times import measured_topology
    from dlplacer.runtime.profile.op_times import profile_ops

    with _opened(devices) as opened:
        step = TracedStep.of(job_of(job, options), default_rewrites(whole_backward))
        whole = whole_graph(step, None if graph is None else graph_of(graph), opened, steps, warmup)
        plan = place(whole, measured_topology(opened), method="list").plan

        def timed(captured: "Captured") -> "Times":
            return profile_ops(step.job, captured, opened, steps, warmup)

        return choose_splits(step, plan, parts, search_s, timed, stop, on_progress)


@checked
def run(
    job: "Job | str | PathLike[str] | None",
    plan: PlanLike,
    devices: DevicesLike = None,
    *,
    steps: int | None = None,
    warmup: int = 3,
    segments: str = "eager",
    compile_baseline: bool | None = None,
    replicas: int | None = None,
    bucket_bytes: int | None = None,
    timeout_s: float = 120.0,
    provider: str | None = None,
    dims: Mapping[str, int] | Sequence[str] = (),
    on_progress: Callable[[str, float | None], None] = silent,
    **options: Unpack[JobOptions],
) -> "Run | OnnxReport":
    """The measurements of a plan on devices of this machine, compared with its prediction and with plain PyTorch.

    Raises the errors of `apply`; RunError if an op fails, naming the op, its module and its device.

    Examples
    --------
    >>> done = dp.run(job, "plan.json", "cpu:0,cpu:1")  # doctest: +SKIP
    >>> done.report.measured_s, done.report.prediction_error  # doctest: +SKIP
    (0.0123, 0.021)
    >>> dp.plot.run(done)  # doctest: +SKIP
    """
    plan = plan_of(plan)
    if is_onnx_plan(plan):
        from dlplacer.runtime.onnx.run_cut_model import run_onnx

        if not isinstance(job, (str, PathLike, type(None))):
            raise InputError("the plan is of an ONNX file; give its path in place of a job, or None")
        described = plan.graph.capture or {}
        bound = {**described["onnx"].get("dims", {}), **sizes_of(dims)}
        file = onnx_file(job or described["entry"], bound, with_weights=True)
        return run_onnx(file, plan, steps or 10, warmup, _onnx_devices(plan, devices, provider))
    if dims:
        raise InputError("dims are for ONNX files; a PyTorch model takes batch_size or inputs")
    here = devices_of(plan, devices)
    if job is None or isinstance(job, str):
        job, options = completed(job, plan, options)
    if over_ranks(plan, here, replicas):
        if "RANK" not in os.environ:
            raise InputError("this plan runs in several processes; start them with torchrun")
        from dlplacer.measure.run_plan import run_over_ranks
        from dlplacer.runtime.distributed.replicate import DEFAULT_BUCKET_BYTES

        count, size = replicas or replicas_of(plan), options.get("batch_size")
        over: dict[str, Any] = {"bucket_bytes": bucket_bytes or DEFAULT_BUCKET_BYTES, "timeout_s": timeout_s}
        over["cut"] = not isinstance(job, str) or size is not None
        whole = job_of(job, options if size is None else {**options, "batch_size": size * count})
        return run_over_ranks(whole, plan, here, steps, warmup, on_progress, replicas=count, segments=segments, **over)
    from dlplacer.measure.run_plan import run as run_plan

    job = job_of(job, options)
    return run_plan(job, plan, here, steps, warmup, on_progress, segments=segments, compiled=compile_baseline)


def is_onnx_plan(plan: Plan) -> bool:
    """True if a plan was made from an ONNX file."""
    return "onnx" in (plan.graph.capture or {})


def over_ranks(plan: Plan, devices: Mapping[str, str] | Sequence[str], replicas: int | None = None) -> bool:
    """True if the arguments, the plan or torchrun ask for more than one process."""
    names = devices.values() if isinstance(devices, Mapping) else devices
    wanted = replicas is not None or replicas_of(plan) > 1 or any("rank" in name for name in names)
    return wanted or int(os.environ.get("WORLD_SIZE", "1")) > 1


def replicas_of(plan: Plan) -> int:
    """The number of replicas that a plan was made for."""
    return int((plan.graph.capture or {}).get("collectives", {}).get("replicas", 1))


def completed(entry: str | None, plan: Plan, options: JobOptions) -> tuple[str, JobOptions]:
    """The name and options of a plan's job; omitted options are those of the plan's capture."""
    described = plan.graph.capture or {}
    if entry is None:
        entry = described.get("entry")
        if not isinstance(entry, str) or not entry.startswith(_OWN_MODELS):
            made_from = entry or "a model in memory"
            raise InputError(f"name the model: dlplacer run PLAN module:callable (the plan is of {made_from})")
    if not is_entry(entry):
        raise InputError(f"{entry!r} is not module:callable; name the model itself")
    known = job_options({name: value for name, value in described.items() if value is not None})
    shapes = [one["shape"] for one in described.get("args", ()) if one.get("shape")]
    if entry.startswith(_OWN_MODELS) and shapes:
        known["batch_size"] = int(shapes[0][0])
    return entry, {**known, **options}


def _onnx_devices(plan: Plan, devices: DevicesLike, provider: str | None) -> "dict[str, OnnxDevice]":
    """Device name in the plan → device, from ``cpu:0,cpu:1``, or ``cuda:0,cuda:1`` and a provider."""
    from dlplacer.runtime.onnx.run_cut_model import OnnxDevice, provider_named

    here, names = devices_of(plan, devices), [device.id for device in plan.topology.devices]
    given = [here[name].strip() for name in names] if isinstance(here, Mapping) else [name.strip() for name in here]
    matches = [_ONNX_DEVICE.fullmatch(device) for device in given]
    named = None if provider is None else provider_named(provider)
    found = [OnnxDevice(int(match[2] or 0), None if match[1] == "cpu" else named) for match in matches if match]
    # Every device of the plan needs a device of its own.
    if len({*found}) != len(names) or (provider is None and not all(map(_CORE.fullmatch, given))):
        wanted = ",".join(f"cpu:{number}" for number in range(len(names)))
        raise InputError(f"devices are {','.join(given)}: write {wanted}, or give a provider for other devices")
    return dict(zip(names, found, strict=True))


def _profiled_onnx(
    path: str | PathLike[str], devices: Sequence[str], dims: Mapping[str, int] | Sequence[str], steps: int, warmup: int
) -> OpGraph:
    from dlplacer.frontend.onnx import onnx_graph
    from dlplacer.runtime.onnx.run_cut_model import profile_onnx
    from dlplacer.runtime.profile.op_times import with_measured_times

    for device in devices:
        if not _CORE.fullmatch(device):
            raise InputError(f"device {device!r}: ONNX files are timed on CPU cores here; write cpu:0")
    file = onnx_file(path, dims, with_weights=True)
    graph = onnx_graph(onnx_file(path, dims))
    return with_measured_times(graph, profile_onnx(file, graph, steps, warmup))


@contextmanager
def _opened(devices: "str | Sequence[NamedDevice]") -> "Iterator[Sequence[RuntimeDevice]]":
    from dlplacer.runtime.devices.open import open_devices

    names = names_of(devices)
    if not names:
        raise InputError("devices is empty; name the devices to time the job on: 'cpu:0' or 'cpu:0,cpu:1'")
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(device)) for device in open_devices(names)]
        yield opened
