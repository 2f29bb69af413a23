"""Whether devices of this machine do what plans expect of them: numbers, races, links, predictions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch

from dlplacer.core.errors import InputError
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device as TopologyDevice
from dlplacer.core.topology import Link, Topology
from dlplacer.files.topology_file import topology_to_dict
from dlplacer.frontend.torch.capture import Captured, capture_job, default_rewrites
from dlplacer.frontend.torch.job import Job
from dlplacer.measure.fidelity.eager import EagerStep
from dlplacer.measure.fidelity.run_plan import run
from dlplacer.measure.selftest.check import Check, largest_difference
from dlplacer.measure.selftest.device_checks import Build, dispatch_checks, graph_checks, results_of
from dlplacer.measure.selftest.random_plan import random_plan
from dlplacer.measure.selftest.selftest_report import environment_of
from dlplacer.planning.place import place
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.jitter import DelayedDevice
from dlplacer.runtime.devices.open import open_devices
from dlplacer.runtime.placed.placed_module import PlacedModule
from dlplacer.runtime.profile.link_times import measured_topology
from dlplacer.runtime.profile.op_times import times_for_planning, with_measured_times

_TOLERANCE = 1e-4
_LONGEST_PAUSE_S = 2e-3
_NOMINAL_BYTES_PER_S = 1e10
_STEPS = 7
"""Of a timed model: all but the quickest and the slowest count, and a self-test takes about a minute on two cores."""


@dataclass(frozen=True)
class Selftest:
    """All checks, in the order in which they were tried.

    Attributes
    ----------
    environment
        Versions and devices.
    topology
        The devices with their measured links; None if none was measured.
    """

    devices: tuple[str, ...]
    checks: tuple[Check, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)
    topology: Topology | None = None

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The object that ``dlplacer selftest --json`` prints, and writes with ``-o``."""
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
    largest_error: float = 0.15,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda what: None,
) -> Selftest:
    """Try plans on the devices.

    Numbers: random plans of the small models against a serialised run on the first device, and against plain PyTorch
    there. Races: the same plans again, with random pauses on every device, must give the same bits. Links: latency and
    rate, reported only. Dispatch: ops per second that are issued, reported only. CUDA graphs: the first small model
    replayed on the first device, with the same numbers; how much sooner is reported. Predictions: plans of the timed
    models, profiled and run.

    Parameters
    ----------
    small, timed
        Name → builder of a training job; the same call builds the same job.
    repeats
        Runs with pauses for each small model.
    largest_error
        Largest relative error of a prediction that passes.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; at least 1 is needed")
    opened = open_devices(devices)
    try:
        checks: list[Check] = []
        for position, (name, build) in enumerate(small.items()):
            on_progress(f"numbers and races: {name}")
            checks += _numbers(name, build, opened, repeats, seed + position)
        on_progress("links")
        topology = measured_topology(opened)
        checks += _links(topology)
        for name, build in list(small.items())[:1]:
            on_progress("dispatch and CUDA graphs")
            checks += dispatch_checks(build(), opened)
            captured = capture_job(build(), default_rewrites())
            alone = random_plan(captured.graph, _nominal(opened[:1]), seed)
            checks += graph_checks(name, build, alone, captured, opened, _TOLERANCE)
        for name, build in timed.items():
            on_progress(f"prediction: {name}")
            plan = _planned(build(), opened, topology)
            report = run(build(), plan, devices, steps=_STEPS, warmup=3).report
            checks.append(Check("prediction", name, report.prediction_error, largest_error, "relative error"))
        names = tuple(device.name for device in opened)
        return Selftest(names, tuple(checks), environment_of(opened), topology)
    finally:
        for device in opened:
            device.close()


def _numbers(name: str, build: Build, devices: Sequence[RuntimeDevice], repeats: int, seed: int) -> Iterator[Check]:
    """One random plan: against plain PyTorch, against one device, and against itself with pauses."""
    captured = capture_job(build(), default_rewrites())
    plan = random_plan(captured.graph, _nominal(devices), seed)
    ours = _outcome(build(), plan, captured, devices)
    job = build()
    (loss,) = EagerStep([job], job.module, devices[0]).step()
    plain = results_of(loss, job.module)
    yield Check(
        "numbers", f"{name} against plain PyTorch", largest_difference(ours, plain), _TOLERANCE, "largest difference"
    )
    serial = random_plan(captured.graph, _nominal(devices[:1]), seed)
    alone = _outcome(build(), serial, captured, devices[:1])
    yield Check(
        "numbers", f"{name} against one device", largest_difference(ours, alone), _TOLERANCE, "largest difference"
    )
    differing = 0
    for number in range(repeats):
        delayed = [DelayedDevice(device, _LONGEST_PAUSE_S, seed + 1000 * number) for device in devices]
        again = _outcome(build(), plan, captured, delayed)
        differing += not all(torch.equal(ours[key], again[key]) for key in ours)
    yield Check("races", f"{name}, {repeats} runs with pauses", float(differing), 0.0, "runs that differ")


def _outcome(job: Job, plan: Plan, captured: Captured, devices: Sequence[RuntimeDevice]) -> dict[str, torch.Tensor]:
    """Loss, gradients and buffers after one step of a plan."""
    named = dict(zip((device.id for device in plan.topology.devices), devices, strict=True))
    placed = PlacedModule(job, plan, captured, named)
    return results_of(placed.step(*job.args, *job.targets, **job.kwargs), placed)


def _links(topology: Topology) -> Iterator[Check]:
    for link in topology.links:
        ends = f"{link.source} to {link.target}"
        yield Check("link", ends, link.latency_s, None, "s latency")
        yield Check("link", ends, link.bytes_per_s, None, "bytes/s")


def _planned(job: Job, devices: Sequence[RuntimeDevice], topology: Topology) -> Plan:
    captured = capture_job(job, default_rewrites())
    times = times_for_planning(job, captured, devices)
    graph = with_measured_times(captured.graph, times)
    return place(graph, topology, method="heft", time_limit_s=30).plan


def _nominal(devices: Sequence[RuntimeDevice]) -> Topology:
    """The devices, each joined to each by a link of some speed: for plans whose times do not matter."""
    nodes = tuple(TopologyDevice(device.name, device.type) for device in devices)
    links = tuple(Link(one.id, other.id, _NOMINAL_BYTES_PER_S) for one, other in combinations(nodes, 2))
    return Topology(nodes, (), links)
