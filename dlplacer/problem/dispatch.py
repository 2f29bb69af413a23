"""Host processes that issue ops, one at a time each: issue times, and a bound on the step.

A device's process takes `Device.dispatch_s` to issue each op of positive time. Zero-time ops and transfers cost nothing
to issue.

*Asynchronous* devices (GPUs) queue issued ops. Their process runs ahead and issues the ops of all its devices in the
order of their starts; an op starts after it has been issued. So at any time a process has spent at least the dispatch
times of all its ops that have started. Ops behind the barrier at the loss are issued from the barrier on.

*Synchronous* devices (CPU cores) run an op inside the call that issues it, so an op's time includes its issue. Cores of
one process share its interpreter: an op starts at least `dispatch_s` after the last op that started on another core,
first come, first served. A core alone in its process never waits. Asynchronous and synchronous devices of one process
do not wait for each other.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from dlplacer.core.topology import Topology
from dlplacer.problem.problem import Problem

_ROUNDING = 1 - 1e-12
"""Factor on the bound: the replay adds floats in another order, and its sum may be slightly smaller."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """[device] → seconds by which issuing an op can delay other ops; its process; True if its ops are issued ahead."""

    seconds: tuple[float, ...]
    process: tuple[int, ...]
    asynchronous: tuple[bool, ...]

    @property
    def delays(self) -> bool:
        """True if an op can ever wait for its issue."""
        return any(self.seconds)

    def shares_interpreter(self, device: int) -> bool:
        """True if ops of a synchronous device and ops of another device can delay each other."""
        mine = (self.process[device], False)
        others = zip(self.process, self.asynchronous, self.seconds, strict=True)
        return not self.asynchronous[device] and any(
            seconds > 0 and (process, ahead) == mine for process, ahead, seconds in others
        )

    def sharing(self, device: int) -> int:
        """The number of devices with a device's process and kind (asynchronous or not), the device included."""
        mine = self.process[device], self.asynchronous[device]
        return list(zip(self.process, self.asynchronous, strict=True)).count(mine)

    def hold_s(self, device: int, time_s: float) -> float:
        """Least seconds for which an op of `time_s` occupies the device's process, in any order; see `least_step_s`."""
        return self.seconds[device] if self.asynchronous[device] else min(self.seconds[device], time_s)


def dispatch_of(topology: Topology) -> Dispatch:
    """The processes that issue a machine's ops, from its description."""
    devices = topology.devices
    names = [("process", device.process) if device.process else ("own", device.id) for device in devices]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    kinds = [(numbers[name], device.asynchronous) for name, device in zip(names, devices, strict=True)]
    # A core with an interpreter of its own never waits: its ops' times include their issue.
    seconds = tuple(
        (device.dispatch_s or 0.0) if device.asynchronous or kinds.count(kind) > 1 else 0.0
        for device, kind in zip(devices, kinds, strict=True)
    )
    return Dispatch(seconds, tuple(process for process, _ in kinds), tuple(ahead for _, ahead in kinds))


def with_one_process(topology: Topology, dispatch_s: float) -> Topology:
    """The machine with all devices asynchronous and one process that issues each op in `dispatch_s`."""
    devices = topology.devices
    issued = (replace(each, dispatch_s=dispatch_s, process="one", asynchronous=True) for each in devices)
    return replace(topology, devices=tuple(issued))


def issue_times(
    problem: Problem,
    device: Sequence[int],
    order: Iterable[int],
    dispatch: Dispatch,
    behind: Container[int] = frozenset(),
) -> list[float]:
    """[op] → seconds until its process has issued it, in `order`; 0 if the op takes no time or is not issued ahead.

    Times of the ops in `behind` count from the barrier.
    """
    issued = [0.0] * problem.op_count
    spent: dict[tuple[int, bool], float] = defaultdict(float)
    for op in order:
        here, part = device[op], op in behind
        kind = problem.topology.devices[here].type
        if dispatch.asynchronous[here] and problem.graph.ops[op].time_on(kind):
            spent[dispatch.process[here], part] += dispatch.seconds[here]
            issued[op] = spent[dispatch.process[here], part]
    return issued


def least_step_s(problem: Problem, dispatch: Dispatch) -> float:
    """Seconds that no plan of a problem can beat, because a process issues one op at a time.

    An op k occupies its process p for c(k, p) seconds. If it is issued ahead, c is the dispatch time. Otherwise c is
    the lesser of the dispatch time and the op's own time: the next op of p waits for the end of op k on the same
    device, and for its dispatch on another. So Σ c(k, p) ≤ T over the ops of p. Every op has some process. So for any
    weights w(p) ≥ 0, ``T · Σ w(p) ≥ Σ over k of min over p of w(p) · c(k, p)``. Here w(p) is 1 ÷ the least dispatch
    time of the process. If all ops are issued ahead, the op issued last runs afterwards, so the least op time is added.
    """
    least: dict[tuple[int, bool], float] = {}
    processes = list(zip(dispatch.process, dispatch.asynchronous, strict=True))
    for key, seconds in zip(processes, dispatch.seconds, strict=True):
        least[key] = min(seconds, least.get(key, seconds))
    if not all(least.values()):
        return 0.0  # all ops could run on a process without dispatch time
    weights, times_s = [1 / least[key] for key in processes], _times(problem)
    held = [
        min((weights[here] * dispatch.hold_s(here, seconds) if seconds else 0.0) for here, seconds in there.items())
        for there in times_s
    ]
    last_s = 0.0
    if all(dispatch.asynchronous):
        last_s = min((min(there.values()) for there in times_s if min(there.values()) > 0), default=0.0)
    return (sum(held) / sum(1 / seconds for seconds in least.values()) + last_s) * _ROUNDING


def _times(problem: Problem) -> list[dict[int, float]]:
    """[op] → allowed device → seconds."""
    kinds = [device.type for device in problem.topology.devices]
    return [
        {here: op.time_on(kinds[here]) or 0.0 for here in allowed}
        for op, allowed in zip(problem.graph.ops, problem.allowed, strict=True)
    ]
