"""A step under dispatch, simulated moment by moment in whole seconds: threads, processes and devices as they are."""

from collections import deque
from collections.abc import Sequence

from dlplacer.problem.problem import Problem


def naive_ends(problem: Problem, device: Sequence[int], order: Sequence[int], latency_s: int) -> dict[str, int]:
    """Op → its end. All times are whole seconds, links are free of contention, and `order` is all ops in some order."""
    machine = problem.topology.devices
    time_s = [int(op.time_on(machine[device[i]].type) or 0) for i, op in enumerate(problem.graph.ops)]
    rank = {op: place for place, op in enumerate(order)}
    to_issue = [deque[tuple[str, object]]() for _ in machine]
    for op in order:
        here, name = device[op], problem.graph.ops[op].id
        calls = to_issue[here]
        for edge in problem.graph.edges_into[name]:
            call = "receive", (edge.tensor, here)
            if device[problem.graph.index[edge.source]] != here and call not in calls:
                calls.append(call)
        calls.append(("op", op))
        for edge in problem.graph.edges_from[name]:
            sent = "send", (edge.tensor, device[problem.graph.index[edge.target]])
            if sent[1][1] != here and sent not in calls:
                calls.append(sent)
    for here, owner in enumerate(machine):
        if not owner.asynchronous:
            to_issue[here].clear()
    to_be_sent = {what for calls in to_issue for kind, what in calls if kind == "send"}
    sent_at: dict[object, int] = {}
    to_run = [deque(op for op in order if device[op] == here) for here in range(len(machine))]
    issued: dict[int, int] = {op: 0 for op in order if not machine[device[op]].asynchronous}
    end: dict[int, int] = {}
    issuing_until: dict[str, int] = {}
    line: list[tuple[int, int]] = []
    thread_until = [0] * len(machine)
    last_start: dict[str, tuple[int, int]] = {}
    asking: list[tuple[int, int, int]] = []

    def process(here: int) -> str:
        return machine[here].process or machine[here].id

    def handover(here: int) -> int:
        return 0 if machine[here].asynchronous else int(machine[here].dispatch_s or 0)

    # Edges have a tensor of their own each, so every edge between devices is a transfer.
    leaving = {
        op: sorted((arc.target for arc in problem.arcs_from[op] if device[arc.target] != device[op]), key=rank.get)
        for op in order
    }
    coming = {op: sum(device[arc.source] != device[op] for arc in problem.arcs_into[op]) for op in order}

    def arrived(op: int, now: int) -> bool:
        for edge in problem.graph.edges_into[problem.graph.ops[op].id]:
            source, what = problem.graph.index[edge.source], (edge.tensor, device[op])
            if source not in end or (what in to_be_sent and what not in sent_at and device[source] != device[op]):
                return False
            far = device[source] != device[op]
            left = end[source]
            if far:
                left += handover(device[source]) * (1 + leaving[source].index(op))
                left = max(left, sent_at.get(what, 0))
            if left + latency_s * far > now:
                return False
        return True

    def moment(now: int) -> bool:
        moved = False
        for here, queue in enumerate(to_issue):
            if not queue or any(entry[1] == here for entry in line) or thread_until[here] > now:
                continue
            kind, what = queue[0]
            if kind == "receive" and what in to_be_sent and sent_at.get(what, now + 1) > now:
                continue
            if kind == "op" and not time_s[what]:  # type: ignore[index]
                issued[what] = now  # type: ignore[index]
                queue.popleft()
            else:
                line.append((now, here))
            moved = True
        for here, queue in enumerate(to_run):
            done = [end[op] + handover(here) * len(leaving[op]) for op in order if device[op] == here and op in end]
            idle = queue and max(done, default=0) + handover(here) * coming[queue[0]] <= now
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
        for entry in sorted(line)[:]:
            here = entry[1]
            if issuing_until.get(process(here), 0) <= now:
                until = issuing_until[process(here)] = thread_until[here] = now + int(machine[here].dispatch_s or 0)
                kind, what = to_issue[here].popleft()
                if kind == "op":
                    issued[what] = until  # type: ignore[index]
                elif kind == "send":
                    sent_at[what] = until
                line.remove(entry)
                return True
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
