"""A plan's schedule in the ticks of a problem that has the same ops and devices: its order, its routes, new times."""

from collections import defaultdict

from dlplacer.core.plan import Plan, Transfer
from dlplacer.problem.problem import Problem
from dlplacer.problem.transfers import ScheduledTransfer, Traffic
from dlplacer.solvers.decode.in_sequence import compact
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.schedule_with_transfers import with_transfers


def schedule_of(plan: Plan, problem: Problem, instance: Instance) -> Schedule | None:
    """The plan's order on devices and links as a schedule of the problem, everything as early as it allows.

    None where the problem lacks an op, a device or a link of the plan. Where times differ from those of the plan, it
    may break a rule, which is for the caller to check.
    """
    devices = problem.topology.device_index
    if plan.scheduled.keys() != problem.graph.index.keys() or any(entry.device not in devices for entry in plan.ops):
        return None
    tick_s = float(problem.tick_s)
    device = [devices[plan.placement[op.id]] for op in problem.graph.ops]
    start = [round(plan.scheduled[op.id].start_s / tick_s) for op in problem.graph.ops]
    if instance.barrier is not None:
        ahead = (op for op in range(problem.op_count) if op not in problem.behind_barrier)
        ends = (plan.scheduled[problem.graph.ops[op].id].end_s for op in ahead)
        device.append(0)
        start.append(round(max(ends) / tick_s))
    if instance.traffic is None:
        return compact(instance, device, start)
    sent = _scheduled(plan, problem, instance.traffic)
    return None if sent is None else with_transfers(instance, instance.traffic, device, start, sent)


def _scheduled(plan: Plan, problem: Problem, traffic: Traffic) -> list[ScheduledTransfer] | None:
    """The plan's transfers as those of the requests that they serve; None where one serves none, or lacks its links."""
    requests: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, request in enumerate(traffic.requests):
        for target in {plan.placement[problem.graph.ops[reader].id] for reader in request.readers}:
            requests[request.tensor, target].append(number)
    found = []
    for transfer in plan.transfers:
        open_requests = requests[transfer.tensor, transfer.target]
        if not open_requests or not _has_links(problem, transfer):
            return None
        number = open_requests.pop(0)
        hops = [segment.route for segment in transfer.segments]
        start = tuple(round(segment.start_s / float(problem.tick_s)) for segment in transfer.segments)
        route = traffic.routes.along(hops, traffic.requests[number].size)
        found.append(ScheduledTransfer(number, problem.topology.device_index[transfer.target], route, start))
    return found


def _has_links(problem: Problem, transfer: Transfer) -> bool:
    return all(hop in problem.topology.link_between for segment in transfer.segments for hop in segment.route)
