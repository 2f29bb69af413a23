"""Plans with random placement, valid by construction, and short calls that run them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from dlplacer.core.graph import OpGraph
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.frontend import Job, capture
from dlplacer.frontend.torch.job import loss_in
from dlplacer.machines.cores import usable_cores
from dlplacer.planning.assemble import assemble
from dlplacer.problem.problem import Problem, build_problem
from dlplacer.runtime import PlacedModule, apply
from dlplacer.solvers.instance.schedule import Outcome, ProblemSchedule

needs_two_cores = pytest.mark.skipif(
    len(usable_cores()) < 2, reason="two CPU devices need two cores, and this process may use one"
)


def machine(device_count: int) -> Topology:
    """Devices d0, d1, … around d0, with links of 1 GB/s and 1 µs."""
    devices = tuple(Device(f"d{position}", "cpu-core") for position in range(device_count))
    links = tuple(Link("d0", device.id, 1e9, 1e-6) for device in devices[1:])
    return Topology(devices, (), links)


def with_unit_times(graph: OpGraph) -> OpGraph:
    """The graph with 1 ms for every op that computes."""
    return replace(
        graph,
        ops=tuple(
            replace(op, time_s=1e-3 if op.kind.startswith(("aten", "update", "test")) else 0.0) for op in graph.ops
        ),
    )


def random_schedule(problem: Problem, seed: int) -> ProblemSchedule:
    """Every op, in a random order that dependencies allow, on a random device that its group allows."""
    chooser = random.Random(seed)
    waits = [len(arcs) for arcs in problem.arcs_into]
    ready = [op for op, count in enumerate(waits) if not count]
    device = [0] * problem.op_count
    of_group: dict[str, int] = {}
    free = [0] * problem.device_count
    start, end = [0] * problem.op_count, [0] * problem.op_count
    while ready:
        op = ready.pop(chooser.randrange(len(ready)))
        drawn = chooser.randrange(problem.device_count)
        group = problem.graph.ops[op].colocate
        here = device[op] = drawn if group is None else of_group.setdefault(group, drawn)
        arrivals = (
            end[arc.source] + (problem.delay[arc.size][device[arc.source]][here] or 0) for arc in problem.arcs_into[op]
        )
        # A tick between any two ops on a device keeps the order of ops without duration.
        start[op] = max([free[here], *arrivals])
        end[op] = start[op] + (problem.duration[op][here] or 0)
        free[here] = end[op] + 1
        for arc in problem.arcs_from[op]:
            waits[arc.target] -= 1
            if not waits[arc.target]:
                ready.append(arc.target)
    return ProblemSchedule(problem, tuple(device), tuple(start))


def random_plan(graph: OpGraph, device_count: int = 2, seed: int = 0) -> Plan:
    """A plan for a graph on `machine`, under the paper's options; the same seed gives the same plan."""
    problem = build_problem(with_unit_times(graph), machine(device_count), Options.paper())
    schedule = random_schedule(problem, seed)
    return assemble(problem, Outcome(schedule, 0), schedule, "random", 0.0, {})


@contextmanager
def placed_at_random(
    job: Job, device_count: int = 2, seed: int = 0, graph: OpGraph | None = None
) -> Iterator[PlacedModule]:
    """The job's module under a random plan on CPU devices; the devices are closed afterwards.

    Parameters
    ----------
    graph
        The job's graph if it has been captured already.
    """
    plan = random_plan(graph or capture(job), device_count, seed)
    placed = apply(job, plan, [f"cpu:{i}" for i in range(device_count)])
    try:
        yield placed
    finally:
        placed.close()


def plain_loss(job: Job, module: torch.nn.Module) -> torch.Tensor:
    """The loss of the job's step in plain PyTorch, of a module of the job's kind."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=job.autocast is not None):
        if job.loss is None:
            loss: torch.Tensor = loss_in(module(*job.args, *job.targets, **job.kwargs))
        else:
            loss = job.loss(module(*job.args, **job.kwargs), *job.targets)
    return loss


def require_same_step(
    placed: PlacedModule, job: Job, plain: torch.nn.Module, *, joint: bool = True, tolerance: float = 1e-6
) -> None:
    """Loss and gradients of a placed step, in one program or by the autograd engine, are those of plain PyTorch."""
    placed.zero_grad()
    plain.zero_grad()
    loss = (placed.step if joint else placed)(*job.args, *job.targets, **job.kwargs)
    if not joint:
        loss.backward()
    expected = plain_loss(job, plain)
    expected.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss.detach(), expected.detach(), rtol=tolerance, atol=tolerance)
    require_same_gradients(placed, plain, tolerance)


def require_same_gradients(placed: torch.nn.Module, plain: torch.nn.Module, tolerance: float = 1e-6) -> None:
    """Parameters have the same names, and the same gradients or none."""
    ours, theirs = dict(placed.named_parameters()), dict(plain.named_parameters())
    assert list(ours) == list(theirs)
    for name, parameter in ours.items():
        assert (parameter.grad is None) == (theirs[name].grad is None), name
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=tolerance, atol=tolerance)
