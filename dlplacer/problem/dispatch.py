"""Host processes that issue ops: what a step waits for them, and a bound on what it must.

An op that takes time is issued by the process of its device in `Device.dispatch_s`. There are two kinds of devices.

*Asynchronous* devices (GPUs) queue what is issued to them. Their process runs ahead: it issues the ops of each device
in order, by a thread per device. A tensor for another device is issued too, by the thread of its producer behind the op
that makes it, and by the thread of its reader before the first op there that reads it, which waits for the former. The
threads of one process take turns, first come, first served; of those that come together, in the order of the devices.
An op or a transfer starts after it has been issued. However many edges lead there, a tensor is sent to a device and
received by it once, also where a barrier comes between its readers.

*Synchronous* devices (CPU cores) run an op inside the call that issues it, so an op's time includes its issue, and a
device alone in its process never waits. Devices that share a process share its interpreter: after an op has started, an
op of another device of the process starts no earlier than `dispatch_s` later, first come, first served. As long does a
tensor keep the device that sends it, behind its producer, and the one that receives it, before its first reader:
handing over passes through the interpreter too. A core alone in its process waits for no turn; what its `dispatch_s`
says is for how long such a hand-over, by memory that processes share, keeps it busy. Measured on two
threads of two cores, chains of ``tanh(x @ w)``: ops of 3 to 10 us alone take 26 to 31 us side by side, two times 14 us,
whatever their size, and ops of 57 us take 59 us.

Ops of no time cost nothing to issue; transfers do. Asynchronous and synchronous devices of one process do not wait for
each other.
"""

from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

from dlplacer.core.topology import Topology
from dlplacer.problem.problem import Problem

_ROUNDING = 1 - 1e-12
"""Sums of floats in another order than the replay's may be longer by so much."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What issuing ops costs on every device; all fields are indexed by device.

    Attributes
    ----------
    seconds
        Of the process for an op; 0 where nothing ever waits for it.
    process
        Number of the process.
    asynchronous
        Whether ops are issued ahead.
    handing_over
        Seconds for which the device is busy with a tensor that it sends or receives; 0 where ops are issued ahead.
    """

    seconds: tuple[float, ...]
    process: tuple[int, ...]
    asynchronous: tuple[bool, ...]
    handing_over: tuple[float, ...]

    @property
    def delays(self) -> bool:
        """Whether an op can ever wait for its issue, or for what its device hands over."""
        return any(self.seconds) or any(self.handing_over)

    def takes_turns(self, device: int) -> bool:
        """Whether ops of a synchronous device wait for, or make wait, those of another one."""
        mine = (self.process[device], False)
        others = zip(self.process, self.asynchronous, self.seconds, strict=True)
        return any(seconds > 0 and (process, ahead) == mine for process, ahead, seconds in others) and (
            not self.asynchronous[device]
        )

    def handover_s(self, device: int) -> float:
        """Seconds for which a synchronous device is busy with a tensor that it sends or receives."""
        return self.handing_over[device]

    def sharing(self, device: int) -> int:
        """How many devices take turns at the process of a device, this one included."""
        mine = self.process[device], self.asynchronous[device]
        return list(zip(self.process, self.asynchronous, strict=True)).count(mine)

    def hold_s(self, device: int, time_s: float) -> float:
        """Seconds for which an op keeps its process to itself, whatever comes before and after; see `least_step_s`."""
        return self.seconds[device] if self.asynchronous[device] else min(self.seconds[device], time_s)


def dispatch_of(topology: Topology) -> Dispatch:
    """What a machine says about the processes that issue its ops."""
    devices = topology.devices
    names = [("process", device.process) if device.process else ("own", device.id) for device in devices]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    process = tuple(numbers[name] for name in names)
    kinds = [(numbers[name], device.asynchronous) for name, device in zip(names, devices, strict=True)]
    # A core that shares its interpreter with no other has nothing to wait for: its ops' times include their issue.
    seconds = tuple(
        (device.dispatch_s or 0.0) if device.asynchronous or kinds.count(kind) > 1 else 0.0
        for device, kind in zip(devices, kinds, strict=True)
    )
    handing_over = tuple(0.0 if device.asynchronous else device.dispatch_s or 0.0 for device in devices)
    return Dispatch(seconds, process, tuple(device.asynchronous for device in devices), handing_over)


def with_one_process(topology: Topology, dispatch_s: float) -> Topology:
    """The machine with one process that issues the ops of all devices, which are asynchronous, whatever it says."""
    devices = topology.devices
    issued = (replace(each, dispatch_s=dispatch_s, process="one", asynchronous=True) for each in devices)
    return replace(topology, devices=tuple(issued))


def least_step_s(problem: Problem, dispatch: Dispatch) -> float:
    """Seconds that no plan of a problem can beat for what issuing costs; the larger of two bounds.

    *Turns.* An op k on process p keeps the process to itself for c(k, p) seconds: the dispatch time where it is issued
    ahead, else the lesser of dispatch time and its own time, as the next op of the process starts so much later, on
    another device after the dispatch time, on the same one after the op. So Σ c(k, p) ≤ T over the ops of p. For any
    weights w(p) ≥ 0, ``T · Σ w(p) ≥ Σ over k of min over p of w(p) · c(k, p)``: every op is on some process. Here w(p)
    is 1 ÷ the least dispatch time of the process. Where all is issued ahead, the op issued last runs after that.

    *Chains*, where all devices are asynchronous: an op is issued after all that it reads, on the same device by order
    and on others because its thread waits; behind a barrier all are issued later still. So the dispatch times along a
    path that ends with an op, then its time and the longest path of op times behind it, follow one another.
    """
    if not dispatch.delays:
        return 0.0
    times_s = _times(problem)
    return max(_turns_s(problem, dispatch, times_s), _chain_s(problem, dispatch, times_s)) * _ROUNDING


@dataclass(frozen=True, slots=True)
class Issues:
    """When asynchronous devices' work has been issued, in seconds; what is behind a barrier is timed from there.

    Attributes
    ----------
    op_s
        [op] → it cannot start earlier. Ops of synchronous devices count as issued at 0.
    sent_s
        (tensor, device that it goes to) → it cannot leave earlier.
    """

    op_s: list[float]
    sent_s: dict[tuple[str, int], float]


def issue_times(
    problem: Problem,
    device: Sequence[int],
    queues: Sequence[Sequence[int]],
    dispatch: Dispatch,
    behind: Container[int] = frozenset(),
) -> Issues:
    """When everything has been issued that these queues of ops ask for.

    Parameters
    ----------
    queues
        [device] → its ops in order; each op once. What is in no queue counts as issued at 0.
    behind
        Ops behind a barrier: their issues begin anew there, but what a device has received it does not receive again.
    """
    found = Issues([0.0] * problem.op_count, {})
    received: list[set[str]] = [set() for _ in queues]
    for later in (False, True):
        part = [[op for op in queue if (op in behind) == later] for queue in queues]
        calls = [deque(_calls(problem, device, *each)) for each in zip(part, received, strict=True)]
        found.sent_s.update(_issue(calls, dispatch, found.op_s))
    return found


def _issue(left: Sequence[deque["_Call"]], dispatch: Dispatch, op_s: list[float]) -> dict[tuple[str, int], float]:
    """When transfers are issued if who comes first is served first; enters the same of ops."""
    sent_s: dict[tuple[str, int], float] = {}
    unsent = {call.sends for queue in left for call in queue if call.sends is not None}
    thread_s = [0.0] * len(left)
    process_s = dict.fromkeys(dispatch.process, 0.0)
    while any(left):
        ready = [
            (max(thread_s[here], sent_s.get(queue[0].receives, 0.0) if queue[0].receives else 0.0), here)
            for here, queue in enumerate(left)
            if queue and queue[0].receives not in unsent
        ]
        if not ready:
            break  # the order cannot run; the replay says why
        ready_s, here = min(ready)
        call = left[here].popleft()
        if call.takes_time:
            process = dispatch.process[here]
            ready_s = process_s[process] = max(process_s[process], ready_s) + dispatch.seconds[here]
        thread_s[here] = ready_s
        if call.op is not None:
            op_s[call.op] = ready_s
        if call.sends is not None:
            sent_s[call.sends] = ready_s
            unsent.discard(call.sends)
    return sent_s


@dataclass(frozen=True, slots=True)
class _Call:
    """What a thread issues: an op, or its half of a transfer, known by its tensor and the device that it goes to."""

    op: int | None = None
    sends: tuple[str, int] | None = None
    receives: tuple[str, int] | None = None
    takes_time: bool = True


def _calls(problem: Problem, device: Sequence[int], queue: Sequence[int], received: set[str]) -> Iterator[_Call]:
    """What the thread of a device issues, in order: a tensor before its first reader here, and behind its producer.

    Parameters
    ----------
    received
        Tensors that the device has; those that come are added.
    """
    graph = problem.graph
    for op in queue:
        node, here = graph.ops[op], device[op]
        for edge, arc in zip(graph.edges_into[node.id], problem.arcs_into[op], strict=True):
            if device[arc.source] != here and edge.tensor not in received:
                received.add(edge.tensor)
                yield _Call(receives=(edge.tensor, here))
        yield _Call(op, takes_time=bool(node.time_on(problem.topology.devices[here].type)))
        targets = zip(graph.edges_from[node.id], problem.arcs_from[op], strict=True)
        sent = {(edge.tensor, device[arc.target]): None for edge, arc in targets if device[arc.target] != here}
        for pair in sent:
            yield _Call(sends=pair)


def _times(problem: Problem) -> list[dict[int, float]]:
    """[op] → device that may run it → seconds."""
    kinds = [device.type for device in problem.topology.devices]
    return [
        {here: op.time_on(kinds[here]) or 0.0 for here in allowed}
        for op, allowed in zip(problem.graph.ops, problem.allowed, strict=True)
    ]


def _turns_s(problem: Problem, dispatch: Dispatch, times_s: Sequence[dict[int, float]]) -> float:
    processes = set(zip(dispatch.process, dispatch.asynchronous, strict=True))
    least: dict[tuple[int, bool], float] = {}
    for key, seconds in zip(zip(dispatch.process, dispatch.asynchronous, strict=True), dispatch.seconds, strict=True):
        least[key] = min(seconds, least.get(key, seconds))
    if not all(least.values()):
        return 0.0  # on a process that costs nothing all ops could run
    weights = [1 / least[process, kind] for process, kind in zip(dispatch.process, dispatch.asynchronous, strict=True)]
    held = [
        min((weights[here] * dispatch.hold_s(here, seconds) if seconds else 0.0) for here, seconds in there.items())
        for there in times_s
    ]
    last_s = 0.0
    if all(dispatch.asynchronous):
        last_s = min((min(there.values()) for there in times_s if min(there.values()) > 0), default=0.0)
    return sum(held) / sum(1 / least[process] for process in processes) + last_s


def _chain_s(problem: Problem, dispatch: Dispatch, times_s: Sequence[dict[int, float]]) -> float:
    if not all(dispatch.asynchronous):
        return 0.0
    shortest = [min(there.values()) for there in times_s]
    tail = [0.0] * problem.op_count
    for op in reversed(problem.topological):
        tail[op] = max((shortest[arc.target] + tail[arc.target] for arc in problem.arcs_from[op]), default=0.0)
    issued, longest_s = [0.0] * problem.op_count, 0.0
    for op in problem.topological:
        issue_s = min(dispatch.seconds[here] if seconds else 0.0 for here, seconds in times_s[op].items())
        issued[op] = max((issued[arc.source] for arc in problem.arcs_into[op]), default=0.0) + issue_s
        longest_s = max(longest_s, issued[op] + shortest[op] + tail[op])
    return longest_s
