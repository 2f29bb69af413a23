"""The default method beside every other method at the same limit, with and without issue costs.

    python tests/benchmarks/default_against_methods.py [--limit 10] [--only NUMBER…]

A row per problem: the makespan of the default ÷ the least of all others. Above 1 the default is behind.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.families import FAMILIES
from benchmarks.leave_one_out import equal_layers
from benchmarks.machines import limited, linked, mixed, timed_on
from benchmarks.suite import Instance

import dlplacer as dp
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology

ISSUE_S = 20e-6
"""A fifth of a mean op: with four devices one process is busy most of the step."""

INSTANCES = (
    Instance("fork_join", 30, 1.0, "ring-4"),
    Instance("layered", 100, 1.0, "linked-2"),
    Instance("stencil", 150, 1.0, "star-4", slack=1.2),
    Instance("u_net", 100, 1.0, "mixed-linked-4", slack=1.5),
    Instance("series_parallel", 300, 10.0, "tree-8"),
    Instance("mixture_of_experts", 1000, 1.0, "linked-3"),
    Instance("transformer_like", 1000, 1.0, "linked-3"),
    Instance("two_tower", 2000, 0.1, "linked-3"),
    Instance("layered", 2000, 1.0, "star-4"),
)
UNEQUAL = (("transformer_like", 300), ("inception_like", 60), ("layered", 100))
"""Families on three unequal devices that have memory for 1.2 times the footprint."""
SHIPPED = (("inception_v3-train", "dgx1-v100-4gpu"), ("inception_v3-infer", "mixed-2gpu"))


def problems() -> Iterator[tuple[str, OpGraph, Topology]]:
    """Name, graph and machine, each without and with the cost of one process that issues all ops."""
    for instance in INSTANCES:
        yield from _both(instance.name, *instance.build())
    for family, count in UNEQUAL:
        three = mixed(linked(3), "fast", "slow", "tiny")
        unequal = timed_on(FAMILIES[family](count, 0, 1.0), three)
        yield from _both(f"{family} {count} tight on three unequal", unequal, limited(three, unequal, 1.2))
    for graph, machine in SHIPPED:
        yield from _both(f"{graph} {machine}", dp.load_graph(graph), dp.load_topology(machine))
    yield from _both("equal layers 1000 dgx1-v100-4gpu", equal_layers(110), dp.load_topology("dgx1-v100-4gpu"))


def _both(name: str, graph: OpGraph, machine: Topology) -> Iterator[tuple[str, OpGraph, Topology]]:
    yield name, graph, machine
    issued = (replace(device, dispatch_s=ISSUE_S, process="python", asynchronous=True) for device in machine.devices)
    yield f"{name} issued", graph, replace(machine, devices=tuple(issued))


def main() -> None:
    parser = argparse.ArgumentParser(description=Path(__file__).stem)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for each method")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of problems")
    arguments = parser.parse_args()
    for number, (name, graph, machine) in enumerate(problems()):
        if arguments.only and number not in arguments.only:
            continue
        began = time.monotonic()
        rows = {row.method: row.makespan_s for row in dp.compare(graph, machine, time_limit_s=arguments.limit).rows}
        others = {method: length_s for method, length_s in rows.items() if length_s is not None and method != "ilp"}
        best, found_s = min(others, key=lambda method: others[method], default=None), rows["ilp"]
        against = "" if best is None or found_s is None else f"{found_s / others[best]:.4f} of {best}"
        print(
            f"{number:2d} {name:55s} {len(graph.ops):5d} ops  {against}  ({time.monotonic() - began:.0f} s)", flush=True
        )


if __name__ == "__main__":
    main()
