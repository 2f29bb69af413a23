"""A step under dispatch, simulated moment by moment in whole seconds: threads, processes and devices as they are."""

from collections import deque
from collections.abc import Sequence

from dlplacer.problem.problem import Problem


def naive_ends(problem: Problem, device: Sequence[int], order: Sequence[int], latency_s: int) -> dict[str, int]:
    """Op → its end. All times are whole seconds, links are free of contention, and `order` is all ops in some order."""
    machine = problem.topology.devices
    time_s = [int(op.time_on(machine[device[i]].type) or 0) for i, op in enumerate(problem.graph.ops)]
    rank = {op: place for place, op in enumerate(order)}
    to_issue = [deque(op for op in order if device[op] == here and d.asynchronous) for here, d in enumerate(machine)]
    to_run = [deque(op for op in order if device[op] == here) for here in range(len(machine))]
    sources = [[arc.source for arc in arcs] for arcs in problem.arcs_into]
    issued: dict[int, int] = {op: 0 for op in order if not machine[device[op]].asynchronous}
    end: dict[int, int] = {}
    issuing_until: dict[str, int] = {}
    line: list[tuple[int, int, int]] = []
    last_start: dict[str, tuple[int, int]] = {}
    asking: list[tuple[int, int, int]] = []

    def process(here: int) -> str:
        return machine[here].process or machine[here].id

    def arrived(op: int, now: int) -> bool:
        far = {source: device[source] != device[op] for source in sources[op]}
        return all(source in end and end[source] + latency_s * far[source] <= now for source in far)

    def moment(now: int) -> bool:
        moved = False
        for here, queue in enumerate(to_issue):
            waits = queue and any(issued.get(s, now + 1) > now for s in sources[queue[0]] if device[s] != here)
            if queue and not waits and not any(entry[1] == here for entry in line):
                before = [op for op in order if device[op] == here and op in issued]
                if all(issued[op] <= now for op in before):
                    if time_s[queue[0]]:
                        line.append((now, here, queue[0]))
                    else:
                        issued[queue.popleft()] = now
                    moved = True
        for here, queue in enumerate(to_run):
            idle = all(end[op] <= now for op in order if device[op] == here and op in end)
            if not queue or not idle or not arrived(queue[0], now) or any(entry[2] == queue[0] for entry in asking):
                continue
            if machine[here].asynchronous or not time_s[queue[0]]:
                if issued.get(queue[0], now + 1) <= now:
                    op = queue.popleft()
                    end[op] = now + time_s[op]
                    moved = True
            else:
                asking.append((now, rank[queue[0]], queue[0]))
                moved = True
        if moved:
            return True  # whoever comes at this moment is there before anyone's turn is given
        for entry in sorted(line):
            _, here, op = entry
            if issuing_until.get(process(here), 0) <= now:
                issuing_until[process(here)] = issued[op] = now + int(machine[here].dispatch_s or 0)
                to_issue[here].popleft()
                line.remove(entry)
                moved = True
        for entry in sorted(asking):
            here = device[entry[2]]
            if any(process(device[each[2]]) == process(here) for each in asking if each < entry):
                continue
            other, started = last_start.get(process(here), (here, 0))
            shared = sum(process(there) == process(here) for there in range(len(machine))) > 1
            if not shared or other == here or now >= started + int(machine[other].dispatch_s or 0):
                last_start[process(here)] = here, now
                to_run[here].popleft()
                asking.remove(entry)
                end[entry[2]] = now + time_s[entry[2]]
                moved = True
        return moved

    now = 0
    while len(end) < len(order):
        while moment(now):
            pass
        now += 1
        assert now < 10_000
    return {problem.graph.ops[op].id: seconds for op, seconds in end.items()}
