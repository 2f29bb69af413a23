"""Seconds per op on devices of this machine, inside whole steps or the parts of one that fit into a device's memory."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.frontend.torch.tracing.fused_lstm import FORWARD, FUSED_LSTM
from dlplacer.frontend.torch.tracing.step_module import job_tensors
from dlplacer.machines.costs.calibration import (
    Calibration,
    CopyLine,
    calibration_of,
    merged,
    read_calibration,
    write_calibration,
)
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.devices.cpu import reserve_heap
from dlplacer.runtime.devices.open import in_host_memory, kind_of
from dlplacer.runtime.profile.machine_times import issue_time_s, measured_topology
from dlplacer.runtime.profile.own_steps import OwnStep, side_by_side
from dlplacer.runtime.profile.statistic import OpTimes, typical

Times = dict[str, dict[str, float]]
"""Device type → op id → seconds."""

Report = Callable[[str, float], None]
"""Hears before each step what is done, and which share of the steps has been taken."""

# The interpreter specialises code that has run some times, and heaps fill: first steps of a thousand short ops take
# twice as long as later ones.
_SHORT_STEPS, _SHORT_STEPS_S = 20, 0.5
_IN_CACHE_S = 100e-6
"""Below that a core reads at most a megabyte or so, which its own cache holds."""


def profile_ops(
    job: Job,
    captured: Captured,
    devices: Sequence[RuntimeDevice],
    steps: int = 7,
    warmup: int = 2,
    on_step: Report = lambda what, share: None,
    memory_bytes: int | None = None,
) -> Times:
    """Op times on these devices while all of them work; those of short ops on cores while the others idle.

    Side by side a short op waits for the interpreter, which the replay adds (`dlplacer.problem.dispatch`). Longer ops
    lose memory bandwidth and cache to the other cores, which they will lose in a plan too. A step that needs more than
    `memory_bytes`, by default what is free on a device, is timed in parts, whose inputs are made from shapes.
    """
    if memory_bytes is None:
        sharing = Counter(device.torch_device for device in devices)
        memory_bytes = min(_free_bytes(device) // sharing[device.torch_device] for device in devices)
    parts = list(_parts(captured.graph.ops, memory_bytes))
    if in_host_memory(devices) and len(parts) == 1:
        # In small pages, ops that wait for memory take up to 1.4 times as long. What is freed leaves gaps: a part more.
        reserve_heap((1 + len(devices)) * sum(op.footprint_bytes for op in captured.graph.ops))
    found: Times = {device.type: {} for device in devices}
    for number, part in enumerate(parts):
        order = {"here": part, "elsewhere": [op.id for op in captured.graph.ops if op.id not in set(part)]}

        def told(done: int, total: int, number: int = number) -> None:
            on_step(f"step {done + 1} of {total}", (number + done / total) / len(parts))

        for kind, times in _timed(job, captured, devices, order, steps, warmup, told).items():
            found[kind] |= times
    return found


def _timed(
    job: Job,
    captured: Captured,
    devices: Sequence[RuntimeDevice],
    order: Mapping[str, Sequence[str]],
    steps: int,
    warmup: int,
    on_step: Callable[[int, int], None],
) -> Times:
    """The times of the ops that an order has `here`."""
    tensors, leaves = job_tensors(job), flat_inputs(job)
    own = [OwnStep(captured, order, "here", device, tensors, leaves, job=job) for device in devices]
    groups = [own, own[:1]] if len(own) > 1 and in_host_memory(devices) else [own]
    for group in groups:
        warm_up(group)
    samples: list[list[tuple[list[OpTimes], list[float]]]] = [[] for _ in groups]
    for number in range(warmup + steps):
        on_step(number, warmup + steps)
        # Steps of both kinds alternate, so that what drifts in the machine drifts in both.
        for group, taken in zip(groups, samples, strict=True):
            taken.append((side_by_side(OwnStep.recorded, group), side_by_side(OwnStep.plain, group)))
    found: list[Times] = []
    for group, taken in zip(groups, samples, strict=True):
        by_kind: dict[str, list[int]] = {}
        for place, step in enumerate(group):
            by_kind.setdefault(step.device.type, []).append(place)
        pairs = {kind: [(r[at], p[at]) for r, p in taken[warmup:] for at in places] for kind, places in by_kind.items()}
        found.append({kind: typical(*zip(*of_kind, strict=True)) for kind, of_kind in pairs.items()})
    together, alone = found[0], found[-1]
    for kind, of_ops in alone.items():
        together[kind] |= {op: time_s for op, time_s in of_ops.items() if time_s < _IN_CACHE_S}
    return together


def warm_up(steps: Sequence[OwnStep]) -> None:
    """Run steps side by side until code is specialised and heaps are filled."""
    begin = time.perf_counter()
    for _ in range(_SHORT_STEPS):
        side_by_side(OwnStep.plain, steps)
        if time.perf_counter() - begin > _SHORT_STEPS_S:
            break


def _parts(ops: Sequence[Op], memory_bytes: int) -> Iterator[list[str]]:
    """The ops in order, cut where those since the last cut would need more memory; an op is never cut.

    Room is left for the largest tensor, in whose memory all tensors lie that come from other parts.
    """
    # A gradient counts where it is made: its parameter, to which a plan charges it, may be in another part.
    made_bytes = [sum(spec.bytes for spec in op.outputs) for op in ops]
    needed_bytes = [max(made, op.weight_bytes) + op.state_bytes for op, made in zip(ops, made_bytes, strict=True)]
    room_bytes = memory_bytes - (max(made_bytes) if sum(needed_bytes) > memory_bytes else 0)
    part: list[str] = []
    taken_bytes = 0
    for op, more_bytes in zip(ops, needed_bytes, strict=True):
        if part and taken_bytes + more_bytes > room_bytes:
            yield part
            part, taken_bytes = [], 0
        part.append(op.id)
        taken_bytes += more_bytes + op.workspace_bytes
    yield part


def _free_bytes(device: RuntimeDevice) -> int:
    """Memory that ops may still take on a device; all cores share the host's memory."""
    if not in_host_memory([device]):
        free: int = torch.get_device_module(device.torch_device).mem_get_info(device.torch_device)[0]
        return free
    try:
        rows = dict(row.split(":") for row in Path("/proc/meminfo").read_text().splitlines())
        return 1024 * int(rows["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def timed_capture(
    job: Job, capture: Callable[[Sequence[str]], Captured], profile: Callable[[Captured], Times], on_cores: bool
) -> tuple[Captured, Times]:
    """A capture of the job, and its op times: `capture` takes rewrites beside the usual ones, `profile` times a
    capture.

    Plain PyTorch runs an LSTM on a CPU as one kernel. Step by step it is many short ops, which devices can share: that
    takes half as long where the layer is wide, as gradients of all steps are one product then, and twice as long where
    it is narrow. So on cores an LSTM is timed both ways, and kept as the one whose ops take less.
    """
    captured = capture(())
    found = captured, profile(captured)
    if on_cores and any(isinstance(module, nn.LSTM) for module in job.module.modules()):
        fused = capture((FUSED_LSTM,))
        if any(code.instructions[0].target is FORWARD for code in fused.executable.of_role("call")):
            both = found, (fused, profile(fused))
            found = min(both, key=lambda timed: min(sum(times.values()) for times in timed[1].values()))
    return found


def with_measured_times(graph: OpGraph, times: Mapping[str, Mapping[str, float]]) -> OpGraph:
    """The graph with measured times for these device types; times for other types stay."""
    ops = []
    for op in graph.ops:
        old = dict(op.time_s) if isinstance(op.time_s, Mapping) else {}
        ops.append(replace(op, time_s={**old, **{kind: by_op[op.id] for kind, by_op in times.items()}}))
    capture = {**(graph.capture or {}), "measured_on": sorted({*measured_types(graph), *times})}
    return replace(graph, ops=tuple(ops), capture=capture)


def measured_types(graph: OpGraph) -> tuple[str, ...]:
    """Device types whose times in the graph were measured."""
    return tuple((graph.capture or {}).get("measured_on", ()))


def calibrate(
    path: Path, graph: OpGraph, times_s: Mapping[str, Mapping[str, float]], devices: Sequence[RuntimeDevice]
) -> Calibration:
    """Put a profile's times into a calibration file, which is made if it is not there; returns its content.

    Of the timed devices the issue cost is measured too, and copies between the first two. Raises InputError
    if they are of several types, or the file was measured on other hardware or versions.
    """
    types = {device.type for device in devices}
    if len(types) != 1:
        raise InputError(
            f"a calibration file is of one device type; {', '.join(sorted(types))} were given: use one each"
        )
    kind, here = devices[0].type, devices[0].torch_device
    versions = {"torch": str(torch.__version__), **kind_of(here).versions(here.index or 0)}
    found = calibration_of(graph, times_s[kind], kind, versions)
    found = found.model_copy(update={"dispatch_s": issue_time_s(devices) or None})
    if len(devices) > 1:
        (link,) = measured_topology(devices[:2]).links
        found = found.model_copy(update={"copy_line": CopyLine(link.latency_s, link.bytes_per_s)})
    if path.exists():
        found = merged(read_calibration(path), found)
    write_calibration(path, found)
    return found
