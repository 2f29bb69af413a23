"""One Python process that feeds all devices: every op is issued by it before it can start, one after another.

CPU cores do not queue for it: their kernels run on the issuing threads, outside the interpreter's lock.
"""

from collections import deque
from collections.abc import Sequence

from dlplacer.core.graph import OpGraph
from dlplacer.problem.problem import Problem


def dispatch_bound_s(graph: OpGraph, dispatch_s: float, device_types: Sequence[str]) -> float:
    """Seconds that no step can beat if each op that takes time is issued in `dispatch_s`.

    Proof: the issues follow one another, and the op that is issued last runs after all of them.

    Parameters
    ----------
    device_types
        Types of the machine's devices.
    """
    shortest = [min(op.time_on(kind) or 0.0 for kind in device_types) for op in graph.ops]
    issued = [time_s for time_s in shortest if time_s > 0]
    return len(issued) * dispatch_s + min(issued, default=0.0) if dispatch_s else 0.0


def issue_times(
    problem: Problem, device: Sequence[int], queues: Sequence[Sequence[int]], dispatch_s: float
) -> list[float]:
    """[op] → seconds until it has been issued; it cannot start earlier.

    Every device's ops are issued in order, by a thread of its own that waits for another device's tensor until its
    producer has been issued; the threads take turns, first come, first served. An op of no time costs nothing to issue.
    Ops behind a barrier, where there is one, are timed from the barrier.

    Parameters
    ----------
    queues
        [device] → its ops in order; each op once. Ops that are not in any queue count as issued at 0.
    """
    sources = [
        [arc.source for arc in arcs if device[arc.source] != device[op]] for op, arcs in enumerate(problem.arcs_into)
    ]
    issued = [0.0] * problem.op_count
    waiting = {op for queue in queues for op in queue}
    left = [deque(queue) for queue in queues]
    thread_s = [0.0] * len(queues)
    host_s = 0.0
    while any(left):
        ready = [
            (max([thread_s[here], *(issued[source] for source in sources[queue[0]])]), here)
            for here, queue in enumerate(left)
            if queue and waiting.isdisjoint(sources[queue[0]])
        ]
        if not ready:
            break  # the order cannot run; the replay says why
        ready_s, here = min(ready)
        op = left[here].popleft()
        if problem.graph.ops[op].time_on(problem.topology.devices[here].type):
            ready_s = host_s = max(host_s, ready_s) + dispatch_s
        issued[op] = thread_s[here] = ready_s
        waiting.discard(op)
    return issued
