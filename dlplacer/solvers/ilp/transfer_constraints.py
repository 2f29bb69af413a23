"""Transfers as part of the model: the route and times of every transfer, and one at a time on a link direction.

Without contention and with spare memory none of this is needed, because eq. 8, 9 and 11 are a table of delays.
"""

from ortools.sat.python import cp_model

from dlplacer.problem.route_table import TimedRoute, Traffic, TransferRequest
from dlplacer.solvers.bounds import Bounds
from dlplacer.solvers.ilp.constraints import OptionalTransfer, Variables, duration
from dlplacer.solvers.instance.instance import FAR, Instance
from dlplacer.solvers.instance.schedule import Schedule
from dlplacer.solvers.instance.time_limit import ask_time

_MOST_ROUTES = 64
"""Routes between two devices that a proof lists for one request; a guess."""

_MOST_OPTIONAL_TRANSFERS = 12_000
"""Routes of all requests above which only routes of least delay are added, and nothing is proven. A guess."""


def add_transfers(
    model: cp_model.CpModel,
    instance: Instance,
    traffic: Traffic,
    variables: Variables,
    bounds: Bounds,
    upper: int,
    every_route: bool = False,
) -> None:
    """Eq. 8 to 11 with routes: a request takes a route to each device that reads the tensor but does not produce it.

    A transfer starts after its producer has ended (eq. 10), each route segment after the previous one, and readers on
    the target after the last segment. A literal may be true without a reader there, which shortens nothing. If there
    are too many routes to list, only the one of least delay is modelled, and `variables.left_out` has the request. With
    `every_route` the function lists all routes that a schedule of at most `upper` ticks may take, between the head of
    the producer and the tails of the readers, if the table is incomplete.
    """
    found = variables.optional_transfers
    for number, request in enumerate(traffic.requests):
        first = bounds.head[request.source] + instance.shortest[request.source]
        producer = variables.place[instance.block[request.source]]
        ready = variables.start[request.source] + duration(instance, variables, request.source)
        delays = [delay for end, delay in instance.successors[request.source] if end in request.readers]
        apart = (op for op in request.readers if instance.block[op] != instance.block[request.source])
        for target in sorted({device for op in apart for device in instance.allowed[op]}):
            # Listing all routes may take seconds.
            ask_time()
            here = [op for op in request.readers if target in instance.allowed[op]]
            most_ticks = upper - first - min(instance.shortest[op] + bounds.tail[op] for op in here)
            several: list[OptionalTransfer] = []
            for source in producer:
                if source == target or all(delay[source][target] >= FAR for delay in delays):
                    continue
                every = every_route and len(found) < _MOST_OPTIONAL_TRANSFERS
                routes, listed = _routes(traffic, request, (source, target), most_ticks, every)
                if not listed:
                    variables.left_out.add(number)
                for route in routes:
                    used = model.new_bool_var("")
                    model.add_implication(used, producer[source])
                    latest = max(first, upper) + sum(segment.ticks for segment in route)
                    start = tuple(model.new_int_var(first, latest, "") for _ in route)
                    model.add(start[0] >= ready)
                    for before, after, segment in zip(start, start[1:], route, strict=False):
                        model.add(after >= before + segment.ticks)
                    several.append(OptionalTransfer(number, source, target, route, used, start))
            found.extend(several)
            model.add_at_most_one(optional.used for optional in several)
            elsewhere = {source: there for source, there in producer.items() if source != target}
            for op in here:
                reads = variables.place[instance.block[op]].get(target)
                if reads is None:
                    continue
                # A reader on the target needs its data made or transferred there, and starts after they arrive.
                for source, there in elsewhere.items():
                    model.add_bool_or([~reads, ~there, *(one.used for one in several if one.source == source)])
                for one in several:
                    arrival = one.start[-1] + one.route[-1].ticks
                    model.add(variables.start[op] >= arrival).only_enforce_if(one.used, reads)


def one_transfer_at_a_time(model: cp_model.CpModel, variables: Variables) -> None:
    """A link direction carries one transfer at a time; link directions always used together share one constraint."""
    uses: dict[int, list[int]] = {}
    intervals: list[cp_model.IntervalVar] = []
    for optional in variables.optional_transfers:
        ask_time()
        for start, segment in zip(optional.start, optional.route, strict=True):
            same: dict[tuple[int, int], int] = {}
            for resource, offset, ticks in segment.holds:
                if offset and not ticks:
                    # The use covers no whole tick for certain, and the tick in which it begins is unknown.
                    continue
                if (offset, ticks) not in same:
                    same[offset, ticks], begin = len(intervals), start + offset
                    intervals.append(model.new_optional_fixed_size_interval_var(begin, ticks, optional.used, ""))
                uses.setdefault(resource, []).append(same[offset, ticks])
    for numbers in {tuple(numbers) for numbers in uses.values()}:
        if len(numbers) > 1:
            model.add_no_overlap([intervals[number] for number in numbers])


def hint_transfers(model: cp_model.CpModel, traffic: Traffic, variables: Variables, schedule: Schedule) -> None:
    """Start the search with the transfers of a schedule, except those that take other routes."""
    sent = {}
    for send in schedule.transfers:
        source = schedule.device[traffic.requests[send.request].source]
        sent[send.request, source, send.target, send.route] = send.start
    for optional in variables.optional_transfers:
        start = sent.get((optional.request, optional.source, optional.target, optional.route))
        if isinstance(optional.used, cp_model.IntVar):
            model.add_hint(optional.used, start is not None)
        if start is not None:
            for variable, begin in zip(optional.start, start, strict=True):
                model.add_hint(variable, begin)


def _routes(
    traffic: Traffic, request: TransferRequest, pair: tuple[int, int], most_ticks: int, every_route: bool
) -> tuple[tuple[TimedRoute, ...], bool]:
    """The routes to model, and True if no other route of at most `most_ticks` could be better."""
    table = traffic.routes
    if table.complete:
        return table.between(request.size, *pair), True
    listed = table.within(request.size, *pair, most_ticks, _MOST_ROUTES) if every_route else None
    return (table.between(request.size, *pair)[:1], False) if listed is None else (listed, True)
