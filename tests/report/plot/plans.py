"""Small plans whose pictures and traces are known by hand, and the pictures."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.plan import Plan, ScheduledOp, Transfer, TransferSegment
from dlplacer.core.topology import Device, Link, Router, Topology

Times = dict[str, tuple[str, float, float]]
"""Op → device, start, end."""


def drawn(plot: Callable[..., Any], subject: Any, **options: Any) -> Axes:
    """The Axes on which a plot function has drawn."""
    ax = Figure(figsize=(12, 5)).add_subplot()
    assert plot(subject, ax, **options) is ax
    return ax


def pair(duplex: str = "full", memory_bytes: int | None = None) -> Topology:
    """Two devices and a link of 2 bytes per second and 1 s latency."""
    devices = tuple(Device(name, "T", memory_bytes) for name in "ab")
    return Topology(devices, links=(Link("a", "b", 2.0, 1.0, duplex),), name="pair")


def sent(tensor: str, source: str, size: int, *parts: tuple[str, float, float]) -> Transfer:
    """A transfer over parts such as ("a-r-b", 0.0, 2.0)."""
    segments = []
    for nodes, start_s, end_s in parts:
        names = nodes.split("-")
        segments.append(TransferSegment(tuple(pairwise(names)), start_s, end_s))
    return Transfer(tensor, source, segments[-1].route[-1][1], size, tuple(segments))


def plan_of(
    ops: Iterable[Op],
    edges: Iterable[Edge],
    times: Times,
    transfers: Iterable[Transfer] = (),
    topology: Topology | None = None,
    options: Options | None = None,
) -> Plan:
    """The plan in which the ops run as given, in the order of their start; the lower bound is half its makespan."""
    entries = tuple(ScheduledOp(name, *where) for name, where in sorted(times.items(), key=lambda item: item[1][1]))
    makespan_s = max(entry.end_s for entry in entries)
    return Plan(
        graph=OpGraph(tuple(ops), tuple(edges), name="small"),
        topology=topology or pair(),
        options=options or Options.paper(),
        status="feasible",
        makespan_s=makespan_s,
        lower_bound_s=makespan_s / 2,
        gap=0.5 if makespan_s else 0.0,
        rounding_s=0.0,
        method="hand",
        solve_s=0.0,
        ops=entries,
        transfers=tuple(transfers),
    )


def diamond(memory_bytes: int | None = None) -> Plan:
    """x feeds y on the other device and z on its own; w reads both.

    a: x 0–2, z 2–3, w 10–11; b: y 5–8. x (4 B) travels 2–5, y (2 B) 8–10. Critical: x, x→b, y, y→a, w.
    The parameter p takes no time and lies on a. Footprints: a 4 + 3 + 1 + 8 = 16 B, b 2 B.
    """
    ops = (
        Op("p", "parameter", 0.0, weight_bytes=8, module="stem.conv", phase="forward"),
        Op("x", "aten.convolution", 2.0, output_bytes=4, module="stem.conv", phase="forward"),
        Op("y", "aten.relu", 3.0, output_bytes=2, module="left", phase="forward"),
        Op("z", "aten._native_batch_norm_legit_functional", 1.0, output_bytes=3, module="right", phase="forward"),
        Op("w", "aten.add", 1.0, output_bytes=1, phase="backward"),
    )
    edges = (
        Edge("p", "x", 8),
        Edge("x", "y", 4, tensor="x.0"),
        Edge("x", "z", 4, tensor="x.0"),
        Edge("y", "w", 2, tensor="y.0"),
        Edge("z", "w", 3),
    )
    times = {"p": ("a", 0.0, 0.0), "x": ("a", 0.0, 2.0), "z": ("a", 2.0, 3.0), "y": ("b", 5.0, 8.0)}
    transfers = (sent("x.0", "x", 4, ("a-b", 2.0, 5.0)), sent("y.0", "y", 2, ("b-a", 8.0, 10.0)))
    return plan_of(ops, edges, times | {"w": ("a", 10.0, 11.0)}, transfers, pair(memory_bytes=memory_bytes))


def one_moment() -> Plan:
    """A single op that takes no time."""
    return plan_of([Op("x", "input", 0.0)], (), {"x": ("a", 0.0, 0.0)})


def through_a_router(delay: str = "cut-through") -> Plan:
    """u (1 s on a) sends 2 B over router r to v (1 s on b); each link takes 1 s of latency and 1 s for the bytes."""
    topology = Topology(
        (Device("a", "T"), Device("b", "T")), (Router("r"),), (Link("a", "r", 2.0, 1.0), Link("r", "b", 2.0, 1.0))
    )
    last_s = 1 + (3.0 if delay == "cut-through" else 4.0)
    return plan_of(
        [Op("u", "k", 1.0), Op("v", "k", 1.0)],
        [Edge("u", "v", 2, tensor="t")],
        {"u": ("a", 0.0, 1.0), "v": ("b", last_s, last_s + 1)},
        [sent("t", "u", 2, ("a-r-b", 1.0, last_s))],
        topology,
        Options(delay=delay),
    )


def waiting_at_a_relay() -> Plan:
    """t goes a → c from 1 to 4, where s.0 has the link to b from 3 to 6: t goes on from 6 to 9."""
    devices = tuple(Device(name, "T") for name in "abc")
    topology = Topology(devices, links=(Link("a", "c", 2.0, 1.0), Link("c", "b", 2.0, 1.0)))
    return plan_of(
        [Op("u", "k", 1.0), Op("v", "k", 1.0), Op("s", "k", 3.0), Op("w", "k", 1.0)],
        [Edge("u", "v", 4, tensor="t"), Edge("s", "w", 4, tensor="s.0")],
        {"u": ("a", 0.0, 1.0), "s": ("c", 0.0, 3.0), "w": ("b", 6.0, 7.0), "v": ("b", 9.0, 10.0)},
        [sent("t", "u", 4, ("a-c", 1.0, 4.0), ("c-b", 6.0, 9.0)), sent("s.0", "s", 4, ("c-b", 3.0, 6.0))],
        topology,
        Options(),
    )


def chunked() -> Plan:
    """u makes two tensors of 4 B on a, which reach b one after the other: at 4 s for v, at 7 s for w."""
    return plan_of(
        [Op("u", "aten.chunk", 1.0), Op("v", "k", 1.0), Op("w", "k", 1.0)],
        [Edge("u", "v", 4, tensor="u.0"), Edge("u", "w", 4, 1, "u.1")],
        {"u": ("a", 0.0, 1.0), "v": ("b", 4.0, 5.0), "w": ("b", 7.0, 8.0)},
        [sent("u.0", "u", 4, ("a-b", 1.0, 4.0)), sent("u.1", "u", 4, ("a-b", 4.0, 7.0))],
        options=Options(),
    )


def two_at_once() -> Plan:
    """u ends on a at 1 s, v at 2 s; each sends 4 B to b at once, in 3 s: the link carries two transfers from 2 to 4."""
    return plan_of(
        [Op("u", "k", 1.0), Op("v", "k", 1.0), Op("w", "k", 1.0)],
        [Edge("u", "w", 4, tensor="u.0"), Edge("v", "w", 4, tensor="v.0")],
        {"u": ("a", 0.0, 1.0), "v": ("a", 1.0, 2.0), "w": ("b", 5.0, 6.0)},
        [sent("u.0", "u", 4, ("a-b", 1.0, 4.0)), sent("v.0", "v", 4, ("a-b", 2.0, 5.0))],
    )
