"""Right plans, built by hand; the arithmetic stands beside the numbers."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from dlplacer.core.constraints import Constraints
from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import DeviceMemory, Plan, ScheduledOp, Transfer, TransferSegment
from dlplacer.core.topology import Device, Link, Router, Topology

PAPER = Options.paper()


def options(**changes: str) -> Options:
    """The paper's options, changed."""
    return replace(PAPER, **changes)


def plan(
    graph: OpGraph,
    topology: Topology,
    assumed: Options,
    ops: Sequence[tuple[str, str, float, float]],
    transfers: Sequence[Transfer] = (),
    memory: dict[str, int] | None = None,
) -> Plan:
    """A plan whose makespan is proven: (op, device, start, end) in execution order, and peaks per device in bytes."""
    scheduled = tuple(ScheduledOp(*entry) for entry in ops)
    makespan_s = max(entry.end_s for entry in scheduled)
    peaks = {name: DeviceMemory(topology.device(name).memory_bytes, peak) for name, peak in (memory or {}).items()}
    figures = {"makespan_s": makespan_s, "lower_bound_s": makespan_s, "gap": 0.0, "rounding_s": 0.0, "solve_s": 0.0}
    return Plan(
        graph,
        topology,
        assumed,
        "optimal",
        method="by hand",
        ops=scheduled,
        transfers=tuple(transfers),
        memory=peaks,
        **figures,
    )


def sent(tensor: str, source: str, size_bytes: int, *segments: tuple[str, float, float]) -> Transfer:
    """A transfer over nodes of one letter: ``("arb", 2, 8)`` leaves a at 2 s and is at b, by way of r, at 8 s."""
    parts = tuple(TransferSegment(tuple(pairwise(nodes)), start, end) for nodes, start, end in segments)
    return Transfer(tensor, source, parts[-1].route[-1][1], size_bytes, parts)


def machine(*links: Link, memory_bytes: int | None = 100) -> Topology:
    """Devices a, b, c and routers r, s, as far as the links name them; device a is always there."""
    names = {"a"} | {name for link in links for name in (link.source, link.target)}
    devices = tuple(Device(name, "gpu", memory_bytes) for name in "abc" if name in names)
    return Topology(devices, tuple(Router(name) for name in "rs" if name in names), links)


def issued_in(plan: Plan, **fields: Any) -> Plan:
    """The plan on devices with other fields, such as what issuing an op takes."""
    devices = tuple(replace(device, **fields) for device in plan.topology.devices)
    return replace(plan, topology=replace(plan.topology, devices=devices))


def changed(plan: Plan, op: str | None = None, transfer: int | None = None, segment: int = 0, **changes: Any) -> Plan:
    """A plan with other values in one op or one segment of a transfer, and the makespan that follows from them."""
    ops, transfers = list(plan.ops), list(plan.transfers)
    if op is not None:
        position = next(i for i, entry in enumerate(ops) if entry.op == op)
        ops[position] = replace(ops[position], **changes)
    if transfer is not None:
        segments = list(transfers[transfer].segments)
        segments[segment] = replace(segments[segment], **changes)
        transfers[transfer] = replace(transfers[transfer], segments=tuple(segments))
    end_s = max(entry.end_s for entry in ops)
    return replace(plan, ops=tuple(ops), transfers=tuple(transfers), makespan_s=end_s, lower_bound_s=end_s)


def with_ops(plan: Plan, **changes: Any) -> Plan:
    """A plan for a graph all of whose ops have other values in some fields."""
    ops = tuple(replace(op, **changes) for op in plan.graph.ops)
    return replace(plan, graph=replace(plan.graph, ops=ops))


def with_op(plan: Plan, name: str, **changes: Any) -> Plan:
    """A plan for a graph in which one op has other values in some fields."""
    ops = tuple(replace(op, **changes) if op.id == name else op for op in plan.graph.ops)
    return replace(plan, graph=replace(plan.graph, ops=ops))


def constrained(plan: Plan, constraints: Constraints) -> Plan:
    """A plan for a graph with these constraints."""
    return replace(plan, graph=replace(plan.graph, constraints=constraints))


def single() -> Plan:
    """x for 2 s, then y for 3 s, on one device; y reads x. M(x) + M(y) = 4 + 20 + 8."""
    ops = (Op("x", "test", 2, weight_bytes=4, output_bytes=20), Op("y", "test", 3, gradient_bytes=3, workspace_bytes=5))
    graph = OpGraph(ops, (Edge("x", "y", 20, tensor="t"),))
    return plan(graph, machine(), PAPER, [("x", "a", 0, 2), ("y", "a", 2, 5)], memory={"a": 32})


def crossing() -> Plan:
    """As `single`, with y on b: 20 B ÷ 10 B/s + 1 s = 3 s on the link. M(x) = 24, M(y) = 8."""
    transfers = [sent("t", "x", 20, ("ab", 2, 5))]
    scheduled = [("x", "a", 0.0, 2.0), ("y", "b", 5.0, 8.0)]
    return plan(single().graph, machine(Link("a", "b", 10, 1)), PAPER, scheduled, transfers, {"a": 24, "b": 8})


def tiny() -> Plan:
    """As `crossing`, in nanoseconds: rounding to ticks of 1 ns may hide 2 ns for each of two ops and an edge."""
    ops = tuple(replace(op, time_s=1e-9 * float(op.time_on("gpu") or 0)) for op in single().graph.ops)
    graph = replace(single().graph, ops=ops)
    scheduled = [("x", "a", 0.0, 2e-9), ("y", "b", 5e-9, 8e-9)]
    return plan(graph, machine(Link("a", "b", 1e10, 1e-9)), PAPER, scheduled, [sent("t", "x", 20, ("ab", 2e-9, 5e-9))])


def routed() -> Plan:
    """As `crossing`, by way of router r: 20 ÷ 10 + 1 s to r, 20 ÷ (2 × 2) s on to b, 8 s in all (eq. 11)."""
    topology = machine(Link("a", "r", 10, 1), Link("r", "b", 2, count=2))
    transfers = [sent("t", "x", 20, ("arb", 2, 10))]
    return plan(single().graph, topology, PAPER, [("x", "a", 0, 2), ("y", "b", 10, 13)], transfers)


def cut_through() -> Plan:
    """As `routed`, flowing: 20 B ÷ 4 B/s of the narrowest link + 1 s of latency = 6 s."""
    transfers = [sent("t", "x", 20, ("arb", 2, 8))]
    scheduled = [("x", "a", 0.0, 2.0), ("y", "b", 8.0, 11.0)]
    return plan(single().graph, routed().topology, options(delay="cut-through"), scheduled, transfers)


def detour(delay: str, nodes: str) -> Plan:
    """From a to b: 20 B ÷ 4 B/s = 5 s directly; by way of routers r and s over three links of 10 B/s 2 s each, or 2 s.

    Store-and-forward the direct link is the shortest (5 < 3 × 2 s), cut-through the detour is (2 < 5 s).
    """
    links = (Link("a", "b", 4), Link("a", "r", 10), Link("r", "s", 10), Link("s", "b", 10))
    delay_s = 5 if nodes == "ab" else 6 if delay == "store-and-forward" else 2
    there_s = 2 + delay_s
    return plan(
        single().graph,
        machine(*links),
        options(delay=delay, routing="shortest"),
        [("x", "a", 0, 2), ("y", "b", there_s, there_s + 3)],
        [sent("t", "x", 20, (nodes, 2, there_s))],
    )


def relayed(assumed: Options = PAPER) -> Plan:
    """From a to c by way of device b: 20 ÷ 10 s, a second of waiting at b, 20 ÷ 5 s."""
    topology = machine(Link("a", "b", 10), Link("b", "c", 5))
    transfers = [sent("t", "x", 20, ("ab", 2, 4), ("bc", 5, 9))]
    return plan(single().graph, topology, assumed, [("x", "a", 0, 2), ("y", "c", 9, 12)], transfers)


def zero_times() -> Plan:
    """Ops of zero time at the boundaries of m, which takes 5 s, and across a link without bytes and latency.

    p → m → q → s on a; q → t on b.
    """
    ops = [Op(name, "test", 5 if name == "m" else 0) for name in "pmqst"]
    edges = (Edge("p", "m", 1), Edge("m", "q", 1), Edge("q", "s", 1), Edge("q", "t", 0, tensor="none"))
    transfers = [sent("none", "q", 0, ("ab", 5, 5))]
    order = [("p", "a", 0, 0), ("m", "a", 0, 5), ("q", "a", 5, 5), ("s", "a", 5, 5), ("t", "b", 5, 5)]
    return plan(OpGraph(tuple(ops), edges), machine(Link("a", "b", 1)), PAPER, order, transfers)


def all_zero() -> Plan:
    """Nothing takes any time."""
    graph = OpGraph((Op("x", "test", 0), Op("y", "test", 0)), (Edge("x", "y", 8),))
    return plan(graph, machine(), PAPER, [("x", "a", 0, 0), ("y", "a", 0, 0)])


def shared(transfers: str, contention: str = "none") -> Plan:
    """y and z on b both read tensor t of x on a, 20 B ÷ 10 B/s.

    Once per device: at b at 3 s, for both. Once per edge: twice from 1 to 3 s; with contention the second from 3 to 5.
    """
    graph = OpGraph(
        tuple(Op(name, "test", 1) for name in "xyz"), (Edge("x", "z", 20, tensor="t"), Edge("x", "y", 20, tensor="t"))
    )
    again = [sent("t", "x", 20, ("ab", 3, 5) if contention == "link" else ("ab", 1, 3))] if transfers == "edge" else []
    late = 5 if contention == "link" and again else 4
    return plan(
        graph,
        machine(Link("a", "b", 10)),
        options(transfers=transfers, contention=contention),
        [("x", "a", 0, 1), ("y", "b", 3, 4), ("z", "b", late, late + 1)],
        [sent("t", "x", 20, ("ab", 1, 3)), *again],
    )


def contended(duplex: str = "full") -> Plan:
    """A link direction carries one transfer at a time; every transfer takes 20 B ÷ 10 B/s = 2 s.

    x and y on a feed u and v on b: 1 to 3 s, then 3 to 5 s although y ends at 2. k on b feeds m on a the other way: at
    1 s on a full-duplex link, at 5 s on a half-duplex one.
    """
    graph = OpGraph(
        tuple(Op(name, "test", 1) for name in "xyuvkm"),
        tuple(Edge(pair[0], pair[1], 20, tensor=pair[0]) for pair in ("xu", "yv", "km")),
    )
    back = 1 if duplex == "full" else 5
    return plan(
        graph,
        machine(Link("a", "b", 10, duplex=duplex)),
        options(contention="link"),
        [
            ("x", "a", 0, 1),
            ("y", "a", 1, 2),
            ("m", "a", back + 2, back + 3),
            ("k", "b", 0, 1),
            ("u", "b", 3, 4),
            ("v", "b", 5, 6),
        ],
        [
            sent("x", "x", 20, ("ab", 1, 3)),
            sent("y", "y", 20, ("ab", 3, 5)),
            sent("k", "k", 20, ("ba", back, back + 2)),
        ],
    )


def hop_by_hop(delay: str) -> Plan:
    """Two transfers of 20 B over the same two links, 10 B/s to r and 5 B/s on to b, after x and y of no time.

    Store-and-forward: 2 s on the first link, 4 s on the second. The second transfer finds the second link free at 6 s,
    so it may enter the first at 4 s and no sooner. Cut-through: 4 s on both links together, one after the other.
    """
    graph = OpGraph(
        tuple(Op(name, "test", 0) for name in "xyuv"),
        (Edge("x", "u", 20, tensor="x"), Edge("y", "v", 20, tensor="y")),
    )
    first, second = ((0, 6), (4, 10)) if delay == "store-and-forward" else ((0, 4), (4, 8))
    return plan(
        graph,
        machine(Link("a", "r", 10), Link("r", "b", 5)),
        options(contention="link", delay=delay),
        [("x", "a", 0, 0), ("y", "a", 0, 0), ("u", "b", first[1], first[1]), ("v", "b", second[1], second[1])],
        [sent("x", "x", 20, ("arb", *first)), sent("y", "y", 20, ("arb", *second))],
    )


def trained() -> Plan:
    """f on a and h on b forward, g on a backward: it reads f, but waits for h, which ends at 3 s."""
    ops = (
        Op("f", "test", 2, phase="forward"),
        Op("h", "test", 3, phase="forward"),
        Op("g", "test", 1, phase="backward"),
    )
    graph = OpGraph(ops, (Edge("f", "g", 1),))
    scheduled = [("f", "a", 0.0, 2.0), ("h", "b", 0.0, 3.0), ("g", "a", 3.0, 4.0)]
    return plan(graph, machine(Link("a", "b", 1)), options(step="autograd"), scheduled)


def alive() -> Plan:
    """Memory by what is alive; 20 B ÷ 10 B/s + 1 s = 3 s on the link.

    On a: weight 10 all step; x from 0 to 2 s with workspace 5; its output of 20 until the transfer ends at 5 s; z from
    2 to 3 s with workspace 7. So 35 from 0, 37 from 2, 30 from 3, 10 from 5. On b: the copy of 20 from 2 s, with the
    transfer, to 8 s; the output of y, 4, from 5 to 8 s. So 20 from 2, 24 from 5, 0 from 8.
    """
    ops = (
        Op("w", "parameter", 0, weight_bytes=10),
        Op("x", "test", 2, output_bytes=20, workspace_bytes=5),
        Op("y", "test", 3, output_bytes=4),
        Op("z", "test", 1, workspace_bytes=7),
    )
    edges = (Edge("w", "x", 10), Edge("x", "y", 20, tensor="t"), Edge("x", "z", 20, tensor="t"))
    return plan(
        OpGraph(ops, edges),
        machine(Link("a", "b", 10, 1), memory_bytes=37),
        Options(step="joint"),
        [("w", "a", 0, 0), ("x", "a", 0, 2), ("z", "a", 2, 3), ("y", "b", 5, 8)],
        [sent("t", "x", 20, ("ab", 2, 5))],
        {"a": 37, "b": 24},
    )


def issued_ahead() -> Plan:
    """GPUs of one process that issues for 1 s each: x until 1 s, y until 2; t is there at 1.75 s."""
    graph = OpGraph((Op("x", "test", 0.5), Op("y", "test", 3)), (Edge("x", "y", 4, tensor="t"),))
    scheduled = [("x", "a", 1.0, 1.5), ("y", "b", 2.0, 5.0)]
    by_hand = plan(graph, machine(Link("a", "b", 16)), PAPER, scheduled, [sent("t", "x", 4, ("ab", 1.5, 1.75))])
    return issued_in(by_hand, dispatch_s=1.0, process="host")


def sharing_an_interpreter() -> Plan:
    """Cores that share an interpreter, which ops of a keep for 3 s and those of b for no time: b's may start first."""
    graph = OpGraph(tuple(Op(name, "test", time_s) for name, time_s in (("x", 1), ("y", 5), ("z", 1), ("n", 0))))
    scheduled = [("x", "a", 0.0, 1.0), ("n", "b", 0.0, 0.0), ("y", "b", 0.0, 5.0), ("z", "b", 5.0, 6.0)]
    by_hand = plan(graph, machine(Link("a", "b", 1)), PAPER, scheduled)
    cores = tuple(
        replace(device, dispatch_s=3.0 if device.id == "a" else None, process="host", asynchronous=False)
        for device in by_hand.topology.devices
    )
    return replace(by_hand, topology=replace(by_hand.topology, devices=cores))


RIGHT = {
    "single": single(),
    "crossing": crossing(),
    "routed": routed(),
    "cut-through": cut_through(),
    "shortest": detour("store-and-forward", "ab"),
    "shortest, cut-through": detour("cut-through", "arsb"),
    "shortest over a relay": relayed(options(routing="shortest")),
    "relayed": relayed(),
    "relayed, cut-through": relayed(options(delay="cut-through")),
    "zero times": zero_times(),
    "no time at all": all_zero(),
    "once per device": shared("device"),
    "once per edge": shared("edge"),
    "once per edge, contended": shared("edge", "link"),
    "full duplex": contended(),
    "half duplex": contended("half"),
    "hop by hop": hop_by_hop("store-and-forward"),
    "all hops together": hop_by_hop("cut-through"),
    "barrier": trained(),
    "live memory": alive(),
    "issued ahead": issued_ahead(),
    "sharing an interpreter": sharing_an_interpreter(),
}
