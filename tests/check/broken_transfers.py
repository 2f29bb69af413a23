"""Plans with broken transfers, memory or figures, by name."""

from dataclasses import replace

from check import plans
from check.broken import (
    ALIVE,
    CONTENDED,
    CROSSING,
    HOPS,
    RELAYED,
    ROUTED,
    SHARED,
    TOGETHER,
    Broken,
    over,
    reporting,
    smaller,
)
from check.plans import changed, sent

from dlplacer.check import arithmetic, loads, memory, routing, shortest

ON_THE_WAY = {
    "no transfer": Broken(routing.transfers_needed, replace(CROSSING, transfers=()), "eq. 8 transfers"),
    "transferred once for two edges": Broken(
        routing.transfers_needed, replace(SHARED, options=plans.PAPER), "eq. 8 transfers"
    ),
    "transferred twice for one device": Broken(
        routing.transfers_needed, replace(SHARED, transfers=SHARED.transfers * 2), "eq. 8 transfers"
    ),
    "unknown tensor": Broken(
        routing.transfers_needed,
        replace(CROSSING, transfers=(*CROSSING.transfers, replace(CROSSING.transfers[0], tensor="u"))),
        "eq. 8 transfers",
    ),
    "other bytes": Broken(
        routing.transfers_needed,
        # 10 B ÷ 10 B/s + 1 s = 2 s
        replace(CROSSING, transfers=(sent("t", "x", 10, ("ab", 2, 4)),)),
        "eq. 8 transfers",
    ),
    "other source": Broken(
        routing.transfers_needed, replace(ALIVE, transfers=(sent("t", "w", 20, ("ab", 2, 5)),)), "eq. 8 transfers"
    ),
    "no link": Broken(
        routing.contiguous_routes, replace(CROSSING, topology=replace(CROSSING.topology, links=())), "eq. 8, 9 route"
    ),
    "a hop from elsewhere": Broken(
        routing.contiguous_routes, over(RELAYED, ("ab", 2, 4), ("cb", 5, 9)), "eq. 8, 9 route"
    ),
    "not from the producer": Broken(routing.contiguous_routes, over(RELAYED, ("bc", 5, 9)), "eq. 8, 9 route"),
    "ends at a router": Broken(routing.contiguous_routes, over(ROUTED, ("ar", 2, 5)), "eq. 8, 9 route"),
    "ends at another device": Broken(routing.contiguous_routes, over(RELAYED, ("ab", 2, 4)), "eq. 8, 9 route"),
    "relays inside a segment": Broken(
        routing.contiguous_routes,
        over(RELAYED, ("abc", 2, 8)),  # 20 ÷ 10 + 20 ÷ 5 s
        "eq. 8, 9 route",
    ),
    "goes round": Broken(
        routing.contiguous_routes,
        changed(over(CROSSING, ("ab", 2, 5), ("ba", 5, 8), ("ab", 8, 11)), "y", start_s=11.0, end_s=14.0),
        "eq. 8, 9 route",
    ),
    "not the shortest": Broken(shortest.shortest_routes, plans.detour("store-and-forward", "arsb"), "shortest route"),
    "not the shortest, cut-through": Broken(
        shortest.shortest_routes, plans.detour("cut-through", "ab"), "shortest route"
    ),
    "transfer too short": Broken(routing.transfer_durations, changed(CROSSING, transfer=0, end_s=4.5), "eq. 11 delay"),
    "cut-through under eq. 11": Broken(
        routing.transfer_durations, replace(plans.cut_through(), options=plans.PAPER), "eq. 11 delay"
    ),
    "leaves the relay before it is there": Broken(
        routing.transfer_durations, changed(RELAYED, transfer=0, segment=1, start_s=3.0, end_s=7.0), "eq. 11 delay"
    ),
    "two on one link": Broken(
        routing.one_transfer_at_a_time, changed(CONTENDED, transfer=1, start_s=2.0, end_s=4.0), "link contention"
    ),
    "both directions at once on a half-duplex link": Broken(
        routing.one_transfer_at_a_time, replace(CONTENDED, topology=plans.contended("half").topology), "link contention"
    ),
    "two on the second of two links": Broken(
        routing.one_transfer_at_a_time, changed(HOPS, transfer=1, start_s=3.0, end_s=9.0), "link contention"
    ),
    "two on links held together": Broken(
        routing.one_transfer_at_a_time, changed(TOGETHER, transfer=1, start_s=2.0, end_s=6.0), "link contention"
    ),
}

COUNTED = {
    "bound below 0": Broken(
        arithmetic.bound_and_gap, replace(CROSSING, lower_bound_s=-8.0, gap=2.0, status="feasible"), "lower bound"
    ),
    "footprints above capacity": Broken(memory.peaks, smaller(CROSSING, 23), "eq. 13 memory"),
    "live peak above capacity": Broken(memory.peaks, smaller(ALIVE, 36), "eq. 13 memory"),
    "reported peak": Broken(memory.peaks, reporting(CROSSING, "a", 100, 25), "eq. 13 memory"),
    "reported capacity": Broken(memory.peaks, reporting(CROSSING, "a", None, 24), "eq. 13 memory"),
    "memory of no device": Broken(memory.peaks, reporting(CROSSING, "z", 100, 0), "eq. 13 memory"),
    "makespan": Broken(arithmetic.makespan, replace(CROSSING, makespan_s=7.5, lower_bound_s=7.5), "makespan"),
    "period": Broken(
        loads.period,
        replace(
            CROSSING, options=replace(CROSSING.options, objective="throughput"), period_s=100.0, lower_bound_s=100.0
        ),
        "period",
    ),
    "bound above the makespan": Broken(
        arithmetic.bound_and_gap, replace(CROSSING, lower_bound_s=9.0), "lower bound", also=("gap",)
    ),
    "gap": Broken(arithmetic.bound_and_gap, replace(CROSSING, lower_bound_s=6.0, gap=0.1, status="feasible"), "gap"),
    "gap that rounding does not explain": Broken(
        arithmetic.bound_and_gap,
        # 1 ns of 8 ns may be hidden: 0.125, not 0.25.
        replace(plans.tiny(), lower_bound_s=6e-9, rounding_s=1e-9),
        "gap",
    ),
    "more rounding than ticks can hide": Broken(
        arithmetic.bound_and_gap,
        # Two ticks for each of two ops and an edge: 6 ns, and a tolerance of 1e-15 s.
        replace(plans.tiny(), lower_bound_s=2e-9, rounding_s=7e-9, gap=0.75, status="feasible"),
        "rounding",
    ),
    "negative rounding": Broken(
        arithmetic.bound_and_gap, replace(CROSSING, rounding_s=-1.0), "rounding", also=("gap",)
    ),
    "optimal with a gap": Broken(arithmetic.bound_and_gap, replace(CROSSING, lower_bound_s=6.0, gap=0.25), "status"),
}
