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

from dlplacer.check import arithmetic, memory, routing, shortest

ON_THE_WAY = {
    "no transfer": Broken(
        routing.transfers_needed,
        replace(CROSSING, transfers=()),
        "eq. 8 transfers",
        "tensor 't' goes to 'b' 0 times; with 'transfers: edge' it must go 1 times",
    ),
    "transferred once for two edges": Broken(
        routing.transfers_needed,
        replace(SHARED, options=plans.PAPER),
        "eq. 8 transfers",
        "tensor 't' goes to 'b' 1 times; with 'transfers: edge' it must go 2 times",
    ),
    "transferred twice for one device": Broken(
        routing.transfers_needed,
        replace(SHARED, transfers=SHARED.transfers * 2),
        "eq. 8 transfers",
        "tensor 't' goes to 'b' 2 times; with 'transfers: device' it must go 1 times",
    ),
    "unknown tensor": Broken(
        routing.transfers_needed,
        replace(CROSSING, transfers=(*CROSSING.transfers, replace(CROSSING.transfers[0], tensor="u"))),
        "eq. 8 transfers",
        "tensor 'u' goes to 'b' 1 times; with 'transfers: edge' it must go 0 times",
    ),
    "other bytes": Broken(
        routing.transfers_needed,
        # 10 B ÷ 10 B/s + 1 s = 2 s
        replace(CROSSING, transfers=(sent("t", "x", 10, ("ab", 2, 4)),)),
        "eq. 8 transfers",
        "the transfer of 't' says 10 bytes of 'x'; the graph says 20 bytes of 'x'",
    ),
    "other source": Broken(
        routing.transfers_needed,
        replace(ALIVE, transfers=(sent("t", "w", 20, ("ab", 2, 5)),)),
        "eq. 8 transfers",
        "the transfer of 't' says 20 bytes of 'w'; the graph says 20 bytes of 'x'",
    ),
    "no link": Broken(
        routing.contiguous_routes,
        replace(CROSSING, topology=replace(CROSSING.topology, links=())),
        "eq. 8, 9 route",
        "tensor 't' to 'b': the topology has no link 'a' → 'b'",
    ),
    "a hop from elsewhere": Broken(
        routing.contiguous_routes,
        over(RELAYED, ("ab", 2, 4), ("cb", 5, 9)),
        "eq. 8, 9 route",
        "tensor 't' to 'c': it is at 'b', but the next hop leads 'c' → 'b'",
    ),
    "not from the producer": Broken(
        routing.contiguous_routes,
        over(RELAYED, ("bc", 5, 9)),
        "eq. 8, 9 route",
        "tensor 't' to 'c': it is at 'a', but the next hop leads 'b' → 'c'",
    ),
    "ends at a router": Broken(
        routing.contiguous_routes,
        over(ROUTED, ("ar", 2, 5)),
        "eq. 8, 9 route",
        "tensor 't' to 'b': a segment ends at 'r', which is no device",
    ),
    "ends at another device": Broken(
        routing.contiguous_routes,
        over(RELAYED, ("ab", 2, 4)),
        "eq. 8, 9 route",
        "tensor 't' to 'c': the route ends at 'b'",
    ),
    "relays inside a segment": Broken(
        routing.contiguous_routes,
        over(RELAYED, ("abc", 2, 8)),  # 20 ÷ 10 + 20 ÷ 5 s
        "eq. 8, 9 route",
        "tensor 't' to 'c': device 'b' relays inside a segment; end the segment there",
    ),
    "goes round": Broken(
        routing.contiguous_routes,
        changed(over(CROSSING, ("ab", 2, 5), ("ba", 5, 8), ("ab", 8, 11)), "y", start_s=11.0, end_s=14.0),
        "eq. 8, 9 route",
        "tensor 't' to 'b': the route visits 'a' 2 times; it may visit a node once",
    ),
    "not the shortest": Broken(
        shortest.shortest_routes,
        plans.detour("store-and-forward", "arsb"),
        "shortest route",
        "tensor 't' to 'b' takes a route of 6 s; 20 bytes need no more than 5 s",
    ),
    "not the shortest, cut-through": Broken(
        shortest.shortest_routes,
        plans.detour("cut-through", "ab"),
        "shortest route",
        "tensor 't' to 'b' takes a route of 5 s; 20 bytes need no more than 2 s",
    ),
    "transfer too short": Broken(
        routing.transfer_durations,
        changed(CROSSING, transfer=0, end_s=4.5),
        "eq. 11 delay",
        "tensor 't' takes 2.5 s from 'a' to 'b' in the plan; 20 bytes need 3 s",
    ),
    "cut-through under eq. 11": Broken(
        routing.transfer_durations,
        replace(plans.cut_through(), options=plans.PAPER),
        "eq. 11 delay",
        "tensor 't' takes 6 s from 'a' to 'b' in the plan; 20 bytes need 8 s",
    ),
    "leaves the relay before it is there": Broken(
        routing.transfer_durations,
        changed(RELAYED, transfer=0, segment=1, start_s=3.0, end_s=7.0),
        "eq. 11 delay",
        "tensor 't' leaves 'b' at 3 s, before it is there at 4 s",
    ),
    "two on one link": Broken(
        routing.one_transfer_at_a_time,
        changed(CONTENDED, transfer=1, start_s=2.0, end_s=4.0),
        "link contention",
        "link 'a' → 'b' carries 'x' until 3 s, but 'y' starts on it at 2 s",
    ),
    "both directions at once on a half-duplex link": Broken(
        routing.one_transfer_at_a_time,
        replace(CONTENDED, topology=plans.contended("half").topology),
        "link contention",
        "link 'a' → 'b' carries 'k' until 3 s, but 'x' starts on it at 1 s",
    ),
    "two on the second of two links": Broken(
        routing.one_transfer_at_a_time,
        changed(HOPS, transfer=1, start_s=3.0, end_s=9.0),
        "link contention",
        "link 'r' → 'b' carries 'x' until 6 s, but 'y' starts on it at 5 s",
    ),
    "two on links held together": Broken(
        routing.one_transfer_at_a_time,
        changed(TOGETHER, transfer=1, start_s=2.0, end_s=6.0),
        "link contention",
        "link 'a' → 'r' carries 'x' until 4 s, but 'y' starts on it at 2 s",
    ),
}

COUNTED = {
    "bound below 0": Broken(
        arithmetic.bound_and_gap,
        replace(CROSSING, lower_bound_s=-8.0, gap=2.0, status="feasible"),
        "lower bound",
        "-8 s is below 0",
    ),
    "footprints above capacity": Broken(
        memory.peaks,
        smaller(CROSSING, 23),
        "eq. 13 memory",
        "device 'a' needs 24 B (24 bytes); it has 23 B (23 bytes)",
    ),
    "live peak above capacity": Broken(
        memory.peaks,
        smaller(ALIVE, 36),
        "eq. 13 memory",
        "device 'a' needs 37 B (37 bytes); it has 36 B (36 bytes)",
    ),
    "reported peak": Broken(
        memory.peaks,
        reporting(CROSSING, "a", 100, 25),
        "eq. 13 memory",
        "device 'a': the plan reports 25 bytes; they are 24",
    ),
    "reported capacity": Broken(
        memory.peaks,
        reporting(CROSSING, "a", None, 24),
        "eq. 13 memory",
        "device 'a': the plan reports a capacity of unlimited; the topology says 100 bytes",
    ),
    "memory of no device": Broken(
        memory.peaks,
        reporting(CROSSING, "z", 100, 0),
        "eq. 13 memory",
        "the plan reports memory of 'z', which is no device of the topology",
    ),
    "makespan": Broken(
        arithmetic.makespan,
        replace(CROSSING, makespan_s=7.5, lower_bound_s=7.5),
        "makespan",
        "the plan says 7.5 s; its last op ends at 8 s",
    ),
    "bound above the makespan": Broken(
        arithmetic.bound_and_gap,
        replace(CROSSING, lower_bound_s=9.0),
        "lower bound",
        "9 s is above the makespan of 8 s",
        also=("gap",),
    ),
    "gap": Broken(
        arithmetic.bound_and_gap,
        replace(CROSSING, lower_bound_s=6.0, gap=0.1, status="feasible"),
        "gap",
        "the plan says 0.1; makespan and bound give 0.25",
    ),
    "gap that rounding does not explain": Broken(
        arithmetic.bound_and_gap,
        # 1 ns of 8 ns may be hidden: 0.125, not 0.25.
        replace(plans.tiny(), lower_bound_s=6e-9, rounding_s=1e-9),
        "gap",
        "the plan says 0; makespan and bound give 0.25, rounding hides 0.13",
    ),
    "more rounding than ticks can hide": Broken(
        arithmetic.bound_and_gap,
        # Two ticks for each of two ops and an edge: 6 ns, and a tolerance of 1e-15 s.
        replace(plans.tiny(), lower_bound_s=2e-9, rounding_s=7e-9),
        "rounding",
        "the plan says that 7e-09 s are hidden; ticks can hide 0 to 6.000001",
    ),
    "negative rounding": Broken(
        arithmetic.bound_and_gap,
        replace(CROSSING, rounding_s=-1.0),
        "rounding",
        "the plan says that -1 s are hidden; ticks can hide 0 to",
        also=("gap",),
    ),
    "optimal with a gap": Broken(
        arithmetic.bound_and_gap,
        replace(CROSSING, lower_bound_s=6.0, gap=0.25),
        "status",
        "the plan calls itself optimal with a gap of 0.25",
    ),
}
