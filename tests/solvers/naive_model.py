"""An oracle for small problems under every option at once: the rules of the problem as one CP-SAT model, word by word.

It lists every simple route, breaks no symmetry, knows no bound and shares no code with the package but the graph and
the machine that a user gives. Times and bytes are small integers.
"""

from collections import defaultdict
from itertools import pairwise
from typing import Any

import networkx as nx
from ortools.sat.python import cp_model

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Topology

_HORIZON = 400


def naive_optimum(graph: OpGraph, topology: Topology, options: Options, seconds: float = 60) -> int | None:
    """The least makespan, or None if no plan exists; AssertionError if CP-SAT does not find out in time."""
    return _Naive(graph, topology, options).solve(seconds)


class _Naive:
    def __init__(self, graph: OpGraph, topology: Topology, options: Options) -> None:
        self.graph, self.topology, self.options = graph, topology, options
        self.model = cp_model.CpModel()
        self.devices = [device.id for device in topology.devices]
        self.busy: dict[object, list[Any]] = defaultdict(list)
        self.held: dict[str, list[tuple[Any, int]]] = defaultdict(list)
        self.leaves: dict[tuple[str, str], list[tuple[Any, Any]]] = defaultdict(list)
        self._ops()
        self._transfers()
        self._memory()
        for resource, intervals in self.busy.items():
            if not isinstance(resource, tuple | frozenset) or options.contention == "link":
                self.model.add_no_overlap(intervals)

    def solve(self, seconds: float) -> int | None:
        last = self.model.new_int_var(0, _HORIZON, "")
        for end in self.end.values():
            self.model.add(last >= end)
        self.model.minimize(last)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 2
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.presolve_inclusion_work_limit = 0
        status = solver.solve(self.model)
        assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE), solver.status_name(status)
        return int(solver.objective_value) if status == cp_model.OPTIMAL else None

    def _moment(self) -> Any:
        return self.model.new_int_var(0, _HORIZON, "")

    def _interval(self, begin: Any, end: Any, here: Any) -> Any:
        length = self.model.new_int_var(0, _HORIZON, "")
        return self.model.new_optional_interval_var(begin, length, end, here, "")

    def _ops(self) -> None:
        model, ops = self.model, self.graph.ops
        self.here = {(op.id, name): model.new_bool_var("") for op in ops for name in self.devices}
        self.start = {op.id: self._moment() for op in ops}
        self.end = {op.id: self._moment() for op in ops}
        groups: dict[str, str] = {}
        for op in ops:
            model.add_exactly_one(self.here[op.id, name] for name in self.devices)
            for device in self.topology.devices:
                here = self.here[op.id, device.id]
                if not _allowed(op, device):
                    model.add(here == 0)
                    continue
                time = op.time_s[device.type] if isinstance(op.time_s, dict) else op.time_s
                model.add(self.end[op.id] == self.start[op.id] + int(time or 0)).only_enforce_if(here)
                self.busy[device.id].append(self._interval(self.start[op.id], self.end[op.id], here))
            if op.colocate is not None:
                first = groups.setdefault(op.colocate, op.id)
                for name in self.devices:
                    model.add(self.here[op.id, name] == self.here[first, name])
        for edge in self.graph.edges:
            model.add(self.start[edge.target] >= self.end[edge.source])
        if self.options.step == "autograd":
            late = [op.id for op in ops if op.phase in ("backward", "optimizer")]
            for op in late:
                for other in ops:
                    if other.id not in late:
                        model.add(self.start[op] >= self.end[other.id])

    def _transfers(self) -> None:
        wanted: dict[object, list[int]] = defaultdict(list)
        for number, edge in enumerate(self.graph.edges):
            wanted[edge.tensor if self.options.transfers == "device" else number].append(number)
        for numbers in wanted.values():
            for target in self.devices:
                self._transfer([self.graph.edges[number] for number in numbers], target)

    def _transfer(self, edges: list[Any], target: str) -> None:
        model, first = self.model, edges[0]
        readers = [self.here[edge.target, target] for edge in edges]
        needed = model.new_bool_var("")
        at_home = self.here[first.source, target]
        for reader in readers:
            model.add_bool_or([needed, ~reader, at_home])
        model.add_bool_or([~needed, *readers])
        model.add_implication(needed, ~at_home)
        arrival, begin_last, routes = self._moment(), self._moment(), []
        for source in self.devices:
            for route in self._routes(source, target, first.bytes) if source != target else ():
                used = model.new_bool_var("")
                routes.append(used)
                model.add_implication(used, self.here[first.source, source])
                self._send(first, source, route, used, arrival, begin_last)
        model.add(sum(routes) == 1).only_enforce_if(needed)
        model.add(sum(routes) == 0).only_enforce_if(~needed)
        for edge, reader in zip(edges, readers, strict=True):
            model.add(self.start[edge.target] >= arrival).only_enforce_if(needed, reader)
        if self.options.memory == "live" and first.bytes:
            until = self._moment()
            model.add(until >= arrival).only_enforce_if(needed)
            for edge in self.graph.edges:
                if edge.tensor == first.tensor:
                    reader = self.here[edge.target, target]
                    model.add(until >= self.end[edge.target]).only_enforce_if(needed, reader)
            self.held[target].append((self._interval(begin_last, until, needed), first.bytes))

    def _send(self, edge: Any, source: str, route: list[str], used: Any, arrival: Any, begin_last: Any) -> None:
        model = self.model
        cuts = [i for i, node in enumerate(route) if node in self.devices]
        ready, spans = self.end[edge.source], []
        for a, b in pairwise(cuts):
            begin = self._moment()
            model.add(begin >= ready).only_enforce_if(used)
            ticks, holds = self._segment(route[a : b + 1], edge.bytes)
            for resource, offset, length in holds:
                self.busy[resource].append(model.new_optional_fixed_size_interval_var(begin + offset, length, used, ""))
            spans.append((begin, begin + ticks, route[b]))
            ready = begin + ticks
        self.leaves[edge.source, source].append((used, spans[0][1]))
        model.add(arrival == ready).only_enforce_if(used)
        model.add(begin_last == spans[-1][0]).only_enforce_if(used)
        if self.options.memory == "live":
            for (begin, _, relay), (_, gone, _) in pairwise(spans):
                until = self._moment()
                model.add(until == gone).only_enforce_if(used)
                self.held[relay].append((self._interval(begin, until, used), edge.bytes))

    def _routes(self, source: str, target: str, size: int) -> list[list[str]]:
        network = nx.Graph([(link.source, link.target) for link in self.topology.links])
        if source not in network or target not in network:
            return []
        found = list(nx.all_simple_paths(network, source, target))
        if self.options.routing == "free" or not found:
            return found
        ticks = [self._ticks(route, size) for route in found]
        return [route for route, spent in zip(found, ticks, strict=True) if spent == min(ticks)]

    def _ticks(self, route: list[str], size: int) -> int:
        cuts = [i for i, node in enumerate(route) if node in self.devices]
        return sum(self._segment(route[a : b + 1], size)[0] for a, b in pairwise(cuts))

    def _segment(self, nodes: list[str], size: int) -> tuple[int, list[tuple[object, int, int]]]:
        links = [self.topology.link_between[hop] for hop in pairwise(nodes)]
        resources = [
            hop if link.duplex == "full" else frozenset(hop) for hop, link in zip(pairwise(nodes), links, strict=True)
        ]
        carry = [_whole(size / (link.bytes_per_s * link.count)) for link in links]
        latency = [_whole(link.latency_s) for link in links]
        if self.options.delay == "cut-through":
            ticks = max(carry) + sum(latency)
            return ticks, [(resource, 0, ticks) for resource in resources]
        spans = [a + b for a, b in zip(carry, latency, strict=True)]
        return sum(spans), [(resource, sum(spans[:i]), spans[i]) for i, resource in enumerate(resources)]

    def _memory(self) -> None:
        for device in self.topology.devices:
            name, kept = device.id, []
            for op in self.graph.ops:
                here = self.here[op.id, name]
                resident = op.weight_bytes + op.gradient_bytes + op.state_bytes
                if self.options.memory == "sum":
                    kept.append(here * (resident + op.output_bytes + op.workspace_bytes))
                    continue
                kept.append(here * resident)
                self.held[name].append((self._interval(self.start[op.id], self.end[op.id], here), op.workspace_bytes))
                until = self._moment()
                self.model.add(until >= self.end[op.id]).only_enforce_if(here)
                for edge in self.graph.edges:
                    if edge.source == op.id:
                        reads = self.here[edge.target, name]
                        self.model.add(until >= self.end[edge.target]).only_enforce_if(here, reads)
                for used, gone in self.leaves[op.id, name]:
                    self.model.add(until >= gone).only_enforce_if(used)
                self.held[name].append((self._interval(self.start[op.id], until, here), op.output_bytes))
            if device.memory_bytes is None:
                continue
            resident_bytes = self.model.new_int_var(0, int(device.memory_bytes), "")
            self.model.add(resident_bytes == sum(kept))
            if self.options.memory == "live":
                intervals = [interval for interval, size in self.held[name] if size]
                sizes = [size for _, size in self.held[name] if size]
                always = self.model.new_fixed_size_interval_var(0, _HORIZON, "")
                self.model.add_cumulative([*intervals, always], [*sizes, resident_bytes], int(device.memory_bytes))


def _allowed(op: Op, device: Device) -> bool:
    timed = not isinstance(op.time_s, dict) or device.type in op.time_s
    return timed and (op.devices is None or device.id in op.devices or device.type in op.devices)


def _whole(value: float) -> int:
    assert value == int(value)
    return int(value)
