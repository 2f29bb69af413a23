"""Jobs: `capture`, and on this machine `apply`, `profile`, `run`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dlplacer.api.subjects import DevicesLike, PlanLike, devices_of, job_of, names_of, plan_of
from dlplacer.core.errors import InputError
from dlplacer.core.expect import expect_flag, expect_table, expect_text, expect_whole
from dlplacer.core.graph import OpGraph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dlplacer.frontend.torch.capture import Traceable
    from dlplacer.frontend.torch.job import Job
    from dlplacer.measure.run_report import Run
    from dlplacer.runtime.devices.base import NamedDevice
    from dlplacer.runtime.placed.placed_module import PlacedModule


def capture(
    job: "Traceable",
    args: tuple[Any, ...] = (),
    *,
    whole_backward: bool = False,
    colocate_backward: bool = False,
    granularity: str = "aten",
) -> OpGraph:
    """The dataflow graph of a step, without times; nothing is allocated.

    Parameters
    ----------
    job
        A `Job`; or a Module, fx.GraphModule or ExportedProgram for its inference graph on `args`.
    whole_backward
        Keep the backward of a convolution in one op instead of an input gradient and a weight gradient.
    colocate_backward
        Hold every backward op on the device of its forward op, as the paper does.
    granularity
        ``aten``: an op for each ATen call. ``fused``: one for chains that always run together. ``module``: one for each
        module and phase; ``module:2`` cuts module paths after two names.

    Raises
    ------
    CaptureError
        If the model cannot be captured; names the line and the way out.

    Examples
    --------
    >>> import dlplacer as dp, torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU())
    >>> dp.capture(module, args=(torch.randn(8, 12),))
    <OpGraph 'Sequential': ... ops, ... edges, 832 B of weights>
    """
    from dlplacer.frontend import capture as capture_step

    expect_flag("", whole_backward=whole_backward, colocate_backward=colocate_backward)
    expect_text("", granularity=granularity)
    return capture_step(
        job,
        args,
        whole_backward=whole_backward,
        colocate_backward=colocate_backward,
        granularity=granularity,
    )


def apply(
    job: "Job",
    plan: PlanLike,
    devices: DevicesLike = None,
    *,
    segments: str = "eager",
) -> "PlacedModule":
    """The job's module, running as planned. Its parameters move to their planned devices.

    Parameters
    ----------
    job
        The job that the plan was captured from: same module, shapes, dtypes and mode.
    plan
        A `Plan`, the `Result` that has it, or the path of a plan file.
    devices
        Device of the plan → device of this machine (``{"gpu0": "cuda:0"}``), or devices in the plan's order
        (``"cpu:0,cpu:1"`` or a list). None: ``cpu:0``, ``cpu:1``, … for CPU cores, ``cuda:0``, … for others.
    segments
        How runs of ops are called: ``eager`` (PyTorch's kernels), ``inductor`` (compiled) or ``cuda_graph``.

    Raises
    ------
    CheckError
        If the plan breaks a rule.
    MismatchError
        If the plan was made for another graph; names the first op that differs.
    InputError
        If a device is missing or not here, or an argument is of a wrong type.

    Examples
    --------
    >>> import dlplacer as dp, torch
    >>> images, labels = torch.randn(8, 12), torch.randint(3, (8,))
    >>> module = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> job = dp.Job(module, args=(images,), targets=(labels,), loss=torch.nn.functional.cross_entropy)
    >>> result = dp.place(job, "cpu-2core", method="heft")
    >>> placed = dp.apply(job, result, "cpu:0,cpu:1")  # doctest: +SKIP
    >>> placed(images, labels).backward()  # doctest: +SKIP
    """
    from dlplacer.runtime.placed.apply import apply as apply_plan

    job, plan = job_of(job), plan_of(plan)
    expect_text("", segments=segments)
    return apply_plan(job, plan, devices_of(plan, devices), segments=segments)


def profile(job: "Job", devices: "str | Sequence[NamedDevice]", *, steps: int = 7, warmup: int = 2) -> OpGraph:
    """The job's graph with the seconds of every op, measured inside whole steps on devices of this machine.

    On cores LSTMs are timed as the kernel that plain PyTorch runs as well, and are what takes less.

    Parameters
    ----------
    job
        With a real module.
    devices
        ``"cpu:0"``, ``"cpu:0,cpu:1"`` or a list: several are timed while all are busy, as when a plan runs on them;
        ops of cores that are too short for that, alone.
    steps, warmup
        Steps that are timed, and steps before them.

    Raises
    ------
    InputError
        If a device is not here, or an argument cannot be.
    CaptureError
        If the model cannot be captured.

    Examples
    --------
    >>> import dlplacer as dp, torch
    >>> job = dp.Job(torch.nn.Linear(64, 64), args=(torch.randn(32, 64),), mode="infer")
    >>> graph = dp.profile(job, "cpu:0", steps=3)  # doctest: +SKIP
    >>> dp.place(graph, "cpu-2core").plan.makespan_s > 0  # doctest: +SKIP
    True
    """
    expect_steps(steps, warmup)
    job, names = job_of(job), names_of(devices)
    if not names:
        raise InputError("devices is empty; name those to time the job on, as 'cpu:0' or 'cpu:0,cpu:1'")
    from dlplacer.frontend.torch.capture import capture_job, default_rewrites
    from dlplacer.runtime.devices.open import in_host_memory, open_devices
    from dlplacer.runtime.profile.op_times import profile_ops, timed_capture, with_measured_times

    opened = open_devices(names)
    try:
        captured, times = timed_capture(
            job,
            lambda more: capture_job(job, [*default_rewrites(), *more]),
            lambda captured: profile_ops(job, captured, opened, steps, warmup),
            in_host_memory(opened),
        )
        return with_measured_times(captured.graph, times)
    finally:
        for device in opened:
            device.close()


def run(
    job: "Job",
    plan: PlanLike,
    devices: DevicesLike = None,
    *,
    steps: int | None = None,
    warmup: int = 3,
    beside: "Mapping[str, PlanLike] | None" = None,
    segments: str = "eager",
    compile_baseline: bool | None = None,
) -> "Run":
    """Run a plan on devices of this machine, and compare it with its prediction and with plain PyTorch.

    Parameters
    ----------
    job, plan, devices
        As for `apply`.
    steps, warmup
        Steps that are timed, and least number of steps before them. None times steps until their medians are sure, for
        a minute at most.
    beside
        Name → another plan of the same job; its steps alternate with those of the plan.
    segments
        As for `apply`.
    compile_baseline
        Whether ``torch.compile`` on one device is timed too, which takes as long as it compiles. None: where segments
        are compiled or captured.

    Raises
    ------
    InputError
        If there are no steps to time, or as `apply` does.
    RunError
        If an op fails; names the op, its module and its device.

    Examples
    --------
    >>> import dlplacer as dp
    >>> done = dp.run(job, "plan.json", "cpu:0,cpu:1")  # doctest: +SKIP
    >>> done.report.measured_s, done.report.prediction_error  # doctest: +SKIP
    (0.0123, 0.021)
    >>> dp.plot.run(done)  # doctest: +SKIP
    """
    expect_steps(1 if steps is None else steps, warmup)
    expect_table("", optional=True, beside=beside)
    expect_text("", segments=segments)
    if compile_baseline is not None:
        expect_flag("", compile_baseline=compile_baseline)
    job, plan = job_of(job), plan_of(plan)
    here = devices_of(plan, devices)
    others = {}
    for name, other in (beside or {}).items():
        expect_text("beside", name=name)
        others[name] = plan_of(other, f"beside[{name!r}]")
    from dlplacer.measure.run_plan import run as run_plan

    return run_plan(job, plan, here, steps, warmup, others, segments=segments, compiled=compile_baseline)


def expect_steps(steps: object, warmup: object) -> None:
    """Return if these are numbers of steps; raises InputError otherwise."""
    expect_whole("", steps=steps, warmup=warmup)
    if not (isinstance(steps, int) and isinstance(warmup, int) and steps >= 1 and warmup >= 0):
        raise InputError(f"steps is {steps} and warmup {warmup}; at least 1 and 0 are needed")
