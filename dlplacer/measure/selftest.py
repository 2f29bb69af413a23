"""Test whether plans run correctly on this machine, and measure links, issue costs and steps."""

import contextlib
import math
import platform
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import combinations
from statistics import median
from typing import Any

import torch

from dlplacer.core.abilities import Shown
from dlplacer.core.errors import InputError, RunError
from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device as TopologyDevice
from dlplacer.core.topology import Link, Topology
from dlplacer.core.version import __version__
from dlplacer.files.formats import topology_to_dict
from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.frontend.torch.job import Job
from dlplacer.machines.cores import usable_cores
from dlplacer.measure.steps import EagerStep, PlacedJob
from dlplacer.planning.place import place
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.open import KINDS, DeviceName, open_devices
from dlplacer.runtime.executor.backends import BACKENDS
from dlplacer.runtime.placed.placed_module import PlacedModule
from dlplacer.runtime.profile.machine_times import issue_time_s, measured_topology
from dlplacer.runtime.profile.op_times import profile_ops, with_measured_times

Build = Callable[[], Job]
"""Builds a training job; every call builds the same job."""

_TOLERANCE = 1e-4
"""Largest allowed difference, relative to a tensor's largest number."""
_COMPILED_TOLERANCE = 1e-3
"""Fused ops of compiled segments sum in another order; differences of 5e-5 were measured."""
_LONGEST_PAUSE_S = 2e-3
_NOMINAL_BYTES_PER_S = 1e10
_STEPS, _WARMUP = 9, 4
"""Number of timed steps, and of warm-up steps: enough for CUDA graphs, which are captured in the third step."""
_SOLVE_S = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """One check: the measured value, its upper limit, and a note for the reader.

    `limit` is None if the value is only reported. `value` is None if there is nothing to measure, or the run failed.
    """

    name: str
    subject: str
    value: float | None
    limit: float | None
    unit: str
    note: str = ""

    @property
    def passed(self) -> bool:
        """True if the value is within its limit, or if value or limit is None; a NaN is never within a limit."""
        return self.limit is None or self.value is None or self.value <= self.limit

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the check; a value that is not finite becomes a string."""
        finite = self.value is None or math.isfinite(self.value)
        return {**asdict(self), "value": self.value if finite else str(self.value), "passed": self.passed}


@dataclass(frozen=True)
class Selftest(Shown):
    """All checks in order of execution; versions and devices (`environment`); measured links (`topology`)."""

    devices: tuple[str, ...]
    checks: tuple[Check, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)
    topology: Topology | None = None

    @property
    def passed(self) -> bool:
        """True if all checks passed."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer selftest --json`` prints, and ``-o`` writes."""
        return {
            "devices": list(self.devices),
            "passed": self.passed,
            "checks": [check.to_dict() for check in self.checks],
            "environment": dict(self.environment),
            "topology": None if self.topology is None else topology_to_dict(self.topology),
        }


def selftest(
    small: Mapping[str, Build],
    timed: Mapping[str, Build],
    devices: Sequence[str],
    *,
    repeats: int = 5,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda what: None,
) -> Selftest:
    """Run plans on the devices in float32, without TF32, and check their results.

    Numbers: random plans of the small models are compared with a run on the first device and with plain PyTorch there;
    the first model runs with every backend of segments. Races: each plan runs `repeats` times more, after a random
    pause of every device, and must give the same numbers, bit for bit on cores. The other checks only report latency
    and rate of links, issue costs, and step times of the `timed` models: in plain PyTorch, and with every backend on
    one and two devices.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; at least 1 is needed")
    with contextlib.ExitStack() as stack:
        opened = _opened(devices, stack)
        # Products in full float32 and deterministic algorithms: any difference comes from the plan.
        cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        exact = (cuda, "allow_tf32", False), (cudnn, "allow_tf32", False), (cudnn, "deterministic", True)
        for owner, flag, value in exact:
            stack.callback(setattr, owner, flag, getattr(owner, flag))
            setattr(owner, flag, value)
        checks: list[Check] = []
        for position, (name, build) in enumerate(small.items()):
            on_progress(f"numbers and races: {name}")
            checks += _numbers(name, build, opened, repeats, seed + position)
        for name, build in list(small.items())[:1]:
            on_progress(f"segments: {name}")
            checks += _segments(name, build, opened[0], seed)
        on_progress("links and issue costs")
        topology = measured_topology(opened)
        for link in topology.links:
            ends = f"{link.source} to {link.target}"
            checks.append(Check("link", ends, link.latency_s, None, "s latency"))
            checks.append(Check("link", ends, link.bytes_per_s, None, "bytes/s"))
        for kind in dict.fromkeys(device.type for device in opened):
            seconds = issue_time_s([device for device in opened if device.type == kind])
            checks.append(Check("issue", kind, seconds or None, None, "s per op"))
        # A single GPU counts as two logical devices; a single core does not.
        two = opened[:2]
        if timed and len(two) < 2:
            streams = opened[0].streams is not None
            two = _opened([f"{devices[0]}/{part}" for part in range(2)], stack) if streams else []
        checks += _steps(timed, opened[0], two, on_progress)
        names = tuple(device.name for device in opened)
        return Selftest(names, tuple(checks), environment_of(opened), topology)


def _opened(names: Sequence[str], stack: contextlib.ExitStack) -> list[RuntimeDevice]:
    return [stack.enter_context(contextlib.closing(device)) for device in open_devices(names)]


def _numbers(name: str, build: Build, devices: Sequence[RuntimeDevice], repeats: int, seed: int) -> Iterator[Check]:
    """Check one random plan against plain PyTorch, against one device, and against itself with pauses."""
    captured = capture_job(build(), default_rewrites())
    plan = random_plan(captured.graph, nominal(devices), seed)
    ours, _ = _outcome(build, plan, captured, devices)
    job = build()
    (loss,) = EagerStep([job], job.module, devices[0]).step()
    serial = random_plan(captured.graph, nominal(devices[:1]), seed)
    others = {
        "plain PyTorch": results_of(loss, job.module),
        "one device": _outcome(build, serial, captured, devices[:1])[0],
    }
    for other, theirs in others.items():
        difference = largest_difference(ours, theirs)
        yield Check("numbers", f"{name} against {other}", difference, _TOLERANCE, "relative difference")
    worst = 0.0
    chooser = random.Random(seed)
    for _ in range(repeats):
        for device in devices:
            device.submit(partial(device.pause, chooser.uniform(0, _LONGEST_PAUSE_S)))
        again = largest_difference(_outcome(build, plan, captured, devices)[0], ours)
        worst = max(worst, again) if again == again else math.inf
    # Some GPU kernels add in the order in which their threads arrive.
    limit = 0.0 if all(device.streams is None for device in devices) else _TOLERANCE
    yield Check("races", f"{name}, {repeats} runs with pauses", worst, limit, "relative difference")


def _segments(name: str, build: Build, device: RuntimeDevice, seed: int) -> Iterator[Check]:
    """Check that a plan on one device gives the same numbers with every backend of segments."""
    captured = capture_job(build(), default_rewrites())
    plan = random_plan(captured.graph, nominal([device]), seed)
    eager, _ = _outcome(build, plan, captured, [device])
    for segments in _backends(device)[1:]:
        difference, unit, note = None, "", ""
        try:
            ours, note = _outcome(build, plan, captured, [device], segments)
            difference, unit = largest_difference(ours, eager), "relative difference"
        except RunError as error:
            note = str(error)
        yield Check("numbers", f"{name}, {segments}", difference, _COMPILED_TOLERANCE, unit, note)


def _backends(device: RuntimeDevice) -> list[str]:
    """The backends for a device, eager first; ``inductor`` is last, because it compiles for a minute or more."""
    names = [name for name in BACKENDS if name != "cuda_graph" or device.streams is not None]
    return sorted(names, key=lambda name: name == "inductor")


def _steps(
    timed: Mapping[str, Build], device: RuntimeDevice, two: Sequence[RuntimeDevice], on_progress: Callable[[str], None]
) -> Iterator[Check]:
    """Time steps in plain PyTorch, and placed on one and on two devices with every backend."""
    for name, build in timed.items():
        on_progress(f"steps: {name}")
        job = build()
        yield Check("step", f"{name}, plain PyTorch", _median_s(EagerStep([job], job.module, device).step), None, "s")
        captured = capture_job(job, default_rewrites())
        graph = with_measured_times(captured.graph, profile_ops(build(), captured, [device], steps=3))
        for segments in _backends(device):
            for devices in filter(None, ([device], two)):
                plan = place(graph, measured_topology(devices), method="heft", time_limit_s=_SOLVE_S).plan
                subject = f"{name}, {segments}, on {', '.join(each.name for each in devices)}"
                on_progress(f"steps: {subject}")
                seconds, note = None, ""
                try:
                    seconds = _median_s(_placed(build(), plan, captured, devices, segments).step)
                except RunError as error:
                    note = str(error)
                yield Check("step", subject, seconds, None, "s", note)


def _median_s(step: Callable[[], object]) -> float:
    times = []
    for _ in range(_WARMUP + _STEPS):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return median(times[_WARMUP:])


def _placed(
    job: Job, plan: Plan, captured: Captured, devices: Sequence[RuntimeDevice], segments: str = "eager"
) -> PlacedJob:
    named = dict(zip((device.id for device in plan.topology.devices), devices, strict=True))
    return PlacedJob(PlacedModule(job, plan, captured, named, segments=segments), [job])


def _outcome(
    build: Build, plan: Plan, captured: Captured, devices: Sequence[RuntimeDevice], segments: str = "eager"
) -> tuple[dict[str, torch.Tensor], str]:
    """Loss, gradients and buffers after one eager step (other backends: several steps, no buffers); and notes."""
    placed = _placed(build(), plan, captured, devices, segments)
    for _ in range(1 if segments == "eager" else _WARMUP):
        (loss,) = placed.step()
    return results_of(loss, placed.placed, buffers=segments == "eager"), "; ".join(placed.placed.graph_notes)


def results_of(loss: torch.Tensor, module: torch.nn.Module, buffers: bool = True) -> dict[str, torch.Tensor]:
    """Copies of loss, gradients and buffers in the host's memory."""
    gradients = {name: tensor.grad for name, tensor in module.named_parameters() if tensor.grad is not None}
    found = {"loss": loss, **gradients, **(dict(module.named_buffers()) if buffers else {})}
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in found.items()}


def largest_difference(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float:
    """The largest difference between tensors of the same name, relative to the largest number of `theirs`.

    NaN if any number is NaN, or `theirs` lacks a name of `ours`.
    """
    if not ours.keys() <= theirs.keys():
        return math.nan
    worst = [0.0]
    for name, tensor in ours.items():
        if tensor.numel():
            one, other = tensor.double(), theirs[name].double()
            size = float(other.abs().max())
            difference = float((one - other).abs().max())
            worst.append(difference / size if size else difference)
    return float(torch.tensor(worst, dtype=torch.float64).max())


def nominal(devices: Sequence[RuntimeDevice]) -> Topology:
    """A topology of the devices with a nominal link for each pair, for plans whose times do not matter."""
    nodes = tuple(TopologyDevice(device.name, device.type) for device in devices)
    links = tuple(Link(one.id, other.id, _NOMINAL_BYTES_PER_S) for one, other in combinations(nodes, 2))
    return Topology(nodes, (), links)


def random_plan(graph: OpGraph, topology: Topology, seed: int) -> Plan:
    """A plan that puts every op, or colocation group, on a random device, ordered by HEFT with random op times.

    A runtime must run such a plan correctly, however slow the plan is.
    """
    chooser, names = random.Random(seed), [device.id for device in topology.devices]
    home: dict[str, str] = defaultdict(lambda: chooser.choice(names))
    ops = tuple(
        replace(op, time_s=chooser.randint(1, 9) * 1e-4 if op.dtype else 0.0, devices=(home[op.colocate or op.id],))
        for op in graph.ops
    )
    options = Options(contention="none", step="joint")
    return place(replace(graph, ops=ops), topology, options, method="heft", time_limit_s=_SOLVE_S).plan


def environment_of(devices: Sequence[RuntimeDevice]) -> dict[str, Any]:
    """Versions of software, system and hardware, the number of cores, and the devices."""
    names = [DeviceName.parse(device.name) for device in devices]
    described = [
        {"name": device.name, "type": device.type, **KINDS[name.kind].versions(name.index)}
        for device, name in zip(devices, names, strict=True)
    ]
    return {
        "dlplacer": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len(usable_cores()),
        "devices": described,
    }
