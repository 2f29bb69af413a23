"""Turn a job and a plan into a module that runs as planned: the entry point of execution."""

import sys
from collections.abc import Mapping, Sequence

from dlplacer.check import check_plan
from dlplacer.core.errors import InputError, MismatchError
from dlplacer.core.graph import OpGraph
from dlplacer.core.plan import Plan
from dlplacer.files.formats import first_difference, structure_sha256
from dlplacer.frontend.torch.capture import Captured, capture_job
from dlplacer.frontend.torch.job import Job
from dlplacer.frontend.torch.tracing.autocast_lists import CUDA_AUTOCAST
from dlplacer.frontend.torch.tracing.kernels import require_kernels
from dlplacer.frontend.torch.tracing.step_module import set_training
from dlplacer.planning.coarsen import coarsen, expanded_plan
from dlplacer.planning.one_device import one_device_note
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import open_devices
from dlplacer.runtime.executor.backends import segment_backend
from dlplacer.runtime.placed.placed_module import PlacedModule
from dlplacer.runtime.placed.variant import require_unscaled_updates


def apply(job: Job, plan: Plan, devices: Mapping[str, str] | Sequence[str], *, segments: str = "eager") -> PlacedModule:
    """The job's module, running as planned. Its parameters move to their planned devices.

    Parameters
    ----------
    job
        The job that the plan was captured from: same module, shapes, dtypes and mode.
    devices
        Device of the plan → device of this machine (``{"gpu0": "cuda:0"}``), or a list in the plan's order.
    segments
        How to run consecutive ops: ``eager`` with PyTorch's kernels, ``inductor`` compiled at the first call,
        ``cuda_graph`` captured in the third step and then replayed (for ops that are not replayed,
        `PlacedModule.graph_notes` gives the reasons).

    Raises
    ------
    CheckError
        If the plan breaks a rule.
    MismatchError
        If the plan was made for another graph; names the first op that differs.
    InputError
        If a device is not named, or this machine does not have it.
    """
    require_applicable(job, plan, segments)
    if (alone := one_device_note(plan)) is not None:
        print(f"dlplacer: {alone}", file=sys.stderr)
    names = device_names(plan, devices)
    opened = dict(zip(names, open_devices(list(names.values())), strict=True))
    try:
        captured = capture_as_planned(job, plan)
        own = of_captured_ops(plan, captured.graph)
        require_runnable(captured, own, opened)
        _note_autocast(job, plan, opened)
        return PlacedModule(job, own, captured, opened, segments=segments)
    except BaseException:
        for device in opened.values():
            device.close()
        raise


def _note_autocast(job: Job, plan: Plan, devices: Mapping[str, RuntimeDevice]) -> None:
    """Warn the user if the step casts by autocast's lists for another type of device."""
    planned = "cuda" if CUDA_AUTOCAST in (plan.graph.capture or {})["rewrites"] else "cpu"
    types = {device.torch_device.type for device in devices.values()}
    if job.autocast is not None and planned not in types:
        how = f"casts by autocast's lists for {planned}, and runs on {', '.join(types)}"
        print(f"dlplacer: the plan {how}; plain PyTorch has other dtypes there: set autocast_on", file=sys.stderr)


def require_applicable(job: Job, plan: Plan, segments: str) -> None:
    """Raise CheckError, MismatchError or InputError unless the plan can be applied to the job."""
    segment_backend(segments)
    check_plan(plan)
    require_unscaled_updates(job)
    require_captured(plan)


def require_captured(plan: Plan) -> None:
    """Raise MismatchError unless a plan's graph was captured from a torch model: else its ops have no code."""
    if "rewrites" not in (plan.graph.capture or {}):
        raise MismatchError("the plan's graph is of no torch model; capture the model, and solve again")


def capture_as_planned(job: Job, plan: Plan) -> Captured:
    """Switch the job's module to the job's mode, and capture the job with the plan's rewrites."""
    if job.module.training != (job.mode == "train"):
        set_training(job.module, job.mode == "train")
    described = plan.graph.capture or {}
    return capture_job(job, described["rewrites"], bool(described.get("colocate_backward")))


def require_runnable(captured: Captured, plan: Plan, devices: Mapping[str, RuntimeDevice]) -> None:
    """Raise InputError, naming the op, unless these devices have a kernel for every op that the plan puts on them."""
    types = {name: device.torch_device.type for name, device in devices.items()}
    homes = {op: types[device] for op, device in plan.placement.items() if device in types}
    require_kernels(captured.executable, homes)


def of_captured_ops(plan: Plan, captured: OpGraph) -> Plan:
    """The plan for the ops of the captured graph; an op of a plan of fused ops or modules becomes several ops."""
    granularity = (plan.graph.capture or {}).get("granularity")
    if granularity is None:
        require_same_graph(plan, captured)
        return plan
    require_same_graph(plan, coarsen(captured, str(granularity)))
    return expanded_plan(plan, captured)


def require_same_graph(plan: Plan, captured: OpGraph) -> None:
    """Raise MismatchError, naming the first op that differs, unless the plan is for this graph; costs may differ."""
    if structure_sha256(plan.graph) == structure_sha256(captured):
        return
    difference = first_difference(plan.graph, captured)
    made_with = (plan.graph.capture or {}).get("torch", "an unknown version")
    raise MismatchError(
        f"the plan was made for another graph: {difference} (first: the plan, made with torch {made_with}; second: "
        "this model); capture and solve again, or give the model and inputs that the plan was made for"
    )


def device_names(
    plan: Plan, devices: Mapping[str, str] | Sequence[str], planned: Sequence[str] | None = None
) -> dict[str, str]:
    """Device of the plan → device of this machine, for the `planned` devices, by default all of the plan's topology.

    Idle devices may be left out. Raises InputError if a used device is not named, or the plan lacks a named device.
    """
    planned = [device.id for device in plan.topology.devices] if planned is None else list(planned)
    used = [name for name in planned if name in plan.placement.values()]
    if isinstance(devices, str):
        devices = devices.split(",")
    if not isinstance(devices, Mapping):
        if len(devices) not in (len(planned), len(used)):
            idle = "" if len(used) == len(planned) else f", or for those that run ops ({', '.join(used)})"
            raise InputError(
                f"the plan has {len(planned)} devices ({', '.join(planned)}), but {len(devices)} were given; name one "
                f"for each, in that order{idle}"
            )
        devices = dict(zip(planned if len(devices) == len(planned) else used, devices, strict=True))
    unknown = [name for name in devices if name not in planned]
    missing = [name for name in used if name not in devices]
    if unknown or missing:
        raise InputError(
            f"devices: the plan has {', '.join(planned)}; "
            + (f"{unknown[0]!r} is none of them" if unknown else f"{missing[0]!r} is not named")
        )
    return {name: devices[name] for name in planned if name in devices}
