"""Whole steps timed op by op on devices that are processes: no interpreter lock is shared."""

import json
import time
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dlplacer.core.errors import RunError
from dlplacer.frontend.torch.capture import Captured
from dlplacer.frontend.torch.job import Job
from dlplacer.planning.interrupt import deferred_interrupts
from dlplacer.runtime.devices.cpu import CpuDevice
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.placed.variant import Variant, layouts_of
from dlplacer.runtime.processes.fork import fork_worker
from dlplacer.runtime.processes.inline_device import InlineDevice
from dlplacer.runtime.processes.worker_handle import WorkerHandle, end_workers
from dlplacer.runtime.profile.op_times import StepSample, copied_tensors, recorded_times


class ProcessProfiler:
    """A job's whole step on any of several devices, each of which is a process with its own copy of the job's tensors.

    For plans whose devices are processes, as `dlplacer.runtime.profile.op_times.Profiler` is for threads. The processes
    end when the profiler is closed or nobody holds it any more.

    Parameters
    ----------
    job
        With a real module.
    """

    def __init__(self, job: Job, captured: Captured, devices: Sequence[CpuDevice]) -> None:
        self._workers: list[WorkerHandle] = []
        self._finalizer = weakref.finalize(self, end_workers, self._workers)
        try:
            for device in devices:
                steps = _OwnSteps(job, captured, InlineDevice(device.name, device.type))
                with deferred_interrupts():
                    self._workers.append(WorkerHandle(device.name, *fork_worker(device, device.core, steps.serve)))
            for worker in self._workers:
                worker.await_ready()
        except BaseException:
            self.close()
            raise

    def recorded_steps(self, positions: Sequence[int]) -> list[StepSample]:
        """A step on each of the devices at these positions, all at the same time; a sample of each, in this order."""
        answers = self._ask(positions, {"record": True})
        return [StepSample(answer["times"], answer["host_s"]) for answer in answers]

    def plain_steps(self, positions: Sequence[int]) -> list[float]:
        """Seconds of a step on each of them, at the same time, that is not recorded."""
        return [answer["seconds"] for answer in self._ask(positions, {"record": False})]

    def close(self) -> None:
        """End the processes."""
        with deferred_interrupts():
            self._finalizer()

    def _ask(self, positions: Sequence[int], asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        line, answers = json.dumps(asked).encode(), []
        asked_of = [self._workers[position] for position in positions]
        worker = asked_of[0]
        try:
            for worker in asked_of:
                worker.connection.send_bytes(line)
            for worker in asked_of:
                answers.append(json.loads(worker.connection.recv_bytes()))
        except (EOFError, OSError):
            self.close()
            raise RunError(f"the process that profiled device {worker.device!r} {worker.ending}") from None
        return answers


class _OwnSteps:
    """In a worker: whole steps on its device."""

    def __init__(self, job: Job, captured: Captured, device: InlineDevice) -> None:
        self._leaves = pytree.tree_leaves((job.args, dict(job.kwargs), job.targets))
        order = {"all": [op.id for op in captured.graph.ops]}
        self._variant = Variant(captured, order, {"all": device}, Updater(job.update), layouts_of(self._leaves))
        self._device = device
        self._tensors = copied_tensors(job, captured, device)
        self._steps_done = 0

    def serve(self, connection: Connection) -> None:
        """Take a step whenever asked, until the other end closes."""
        connection.send_bytes(b"{}")
        while True:
            try:
                asked = json.loads(connection.recv_bytes())
            except EOFError:
                return
            connection.send_bytes(json.dumps(self._step(asked["record"])).encode())

    def _step(self, record: bool) -> dict[str, Any]:
        self._steps_done += 1
        variant = self._variant
        begin = time.perf_counter()
        with torch.no_grad():
            inputs = variant.with_tangent(variant.bind(self._tensors, self._leaves, 0, self._steps_done), None)
        state = variant.joint.start(inputs, record)
        variant.joint.run(state)
        seconds = time.perf_counter() - begin
        if not record:
            return {"seconds": seconds}
        times = recorded_times(self._device, state)
        return {"times": times, "host_s": max(0.0, seconds - sum(times.values()))}
