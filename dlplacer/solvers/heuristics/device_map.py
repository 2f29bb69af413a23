"""Placements that fill one device after another: Hugging Face Accelerate's device maps, and m-TOPO (Jeon et al.)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf

from dlplacer.core.graph import OpGraph
from dlplacer.machines.costs.device_table import is_core
from dlplacer.problem.problem import Problem
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.heuristics.list_rules import Heuristic, list_schedule, program_order
from dlplacer.solvers.heuristics.memory_packing import Fixed, Priority, fitted
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule

_BUFFER = 1.25
"""Factor on the larger of a whole layer and the mean innermost module, as in Accelerate's `get_balanced_memory`."""

Path = tuple[str, ...]
"""Names from the root to a module or a tensor; a tensor's last name is its op."""


def sequential(problem: Problem) -> Heuristic:
    """The rule that fills each device's memory before it uses the next, CPU cores last."""
    return _on_map(problem, {})


def balanced(problem: Problem) -> Heuristic:
    """Like `sequential`, but each accelerator except the last holds at most its share of the weights plus a buffer."""
    root, devices = _weights(problem.graph), _accelerators(problem)
    whole = _whole_classes(problem.graph).values()
    layers = (next((part.size for part in root.within() if part.path in paths), 0) for paths in whole)
    innermost = [part.size for part in root.within() if part.path and part.parts and not part.modules]
    mean = sum(innermost) // max(1, len(innermost))
    share = root.size // len(devices) + int(_BUFFER * max([mean, *layers]))
    return _on_map(problem, dict.fromkeys(devices[:-1], share))


@dataclass(frozen=True, eq=False)
class _Part:
    """A module or a tensor, its bytes of weights, and its contents in registration order."""

    path: Path
    size: int
    parts: tuple["_Part", ...] = ()

    @property
    def modules(self) -> list["_Part"]:
        return [part for part in self.parts if part.parts]

    def within(self) -> Iterator["_Part"]:
        """The part itself and all parts inside it."""
        yield self
        for part in self.parts:
            yield from part.within()


class _Allotment:
    """Assignment of parts to devices in turn, as in Accelerate: a part that is too large is opened if it may be split.

    Reserving devices keep memory free for the largest remaining layer, because it may be offloaded.
    """

    def __init__(
        self,
        root: _Part,
        limits: Sequence[tuple[int, float]],
        reserving: set[int],
        whole: frozenset[Path],
        ties: Sequence[Sequence[Path]],
    ) -> None:
        self.queue = list(root.parts)
        self.limits, self.reserving, self.whole, self.ties = limits, reserving, whole, ties
        self.sizes = {part.path: part.size for part in root.within()}
        self.largest: dict[Path, int] = {}

    def run(self) -> dict[Path, int]:
        """Path → device; parts that are left when all devices are full are absent."""
        found: dict[Path, int] = {}
        for device, limit in self.limits:
            used = 0
            while self.queue:
                part = self.queue.pop(0)
                tied, size = self._with_ties(part)
                kept = map(self._largest_layer, self.queue if device in self.reserving else ())
                room = limit - used - max(kept, default=0)
                if size <= room:
                    found.update((each.path, device) for each in (part, *tied))
                    self.queue = [each for each in self.queue if each not in tied]
                    used += size
                elif not self._open(part, tied, room):
                    self.queue.insert(0, part)
                    break
        return found

    def _open(self, part: _Part, tied: Sequence[_Part], room: float) -> bool:
        """Open the part that does not fit, or a part with which it shares a tensor; False if neither can be opened."""
        candidates = tied if tied and part.size <= room else (part,)
        opened = next((each for each in candidates if self._can_open(each)), None)
        if opened is None:
            return False
        self.queue.insert(0, part)
        place = self.queue.index(opened)
        self.queue[place : place + 1] = opened.parts
        return True

    def _can_open(self, part: _Part) -> bool:
        return bool(part.modules) and part.path not in self.whole

    def _with_ties(self, part: _Part) -> tuple[list[_Part], int]:
        """The waiting parts that share tensors with a part, and the bytes of all."""
        tied: list[_Part] = []
        size = part.size
        for group in self.ties:
            outside = [path for path in group if not _holds(part.path, path)]
            if len(outside) == len(group):
                continue
            for path in outside:
                holder = next((each for each in self.queue if _holds(each.path, path)), None)
                if holder is not None:
                    size += holder.size - self.sizes[path]
                    tied.append(holder)
        return tied, size

    def _largest_layer(self, part: _Part) -> int:
        """Bytes of the largest module inside a part that is never opened."""
        if part.path not in self.largest:
            inner = map(self._largest_layer, part.modules) if self._can_open(part) else (part.size,)
            self.largest[part.path] = max(inner) if part.parts else 0
        return self.largest[part.path]


def _on_map(problem: Problem, shares: Mapping[int, int]) -> Heuristic:
    """The rule that keeps the program's order and the device map's placement, except where memory is short."""
    graph = problem.graph
    first = _accelerators(problem)
    cores = [device for device in range(problem.device_count) if device not in first]
    rooms = [inf if size is None else size for size in problem.capacity_bytes]
    limits = [(device, min(rooms[device], shares.get(device, inf))) for device in (*first, *cores)]
    whole = frozenset(path for paths in _whole_classes(graph).values() for path in paths)
    homes = _Allotment(_weights(graph), limits, {first[0], *cores}, whole, _ties(graph)).run()
    wished = _sites(problem, homes, first[0])

    def rule(instance: Instance, priority: Priority, fixed: Fixed) -> Schedule | None:
        order = program_order(instance)
        sites = fitted(instance, [_of_block(problem, wished, ops) for ops in instance.members], order, fixed)
        return None if sites is None else in_sequence(instance, [sites[block] for block in instance.block], order)

    return rule


def _accelerators(problem: Problem) -> list[int]:
    """The devices that are not CPU cores, or all devices if all are; in a device map the CPU is only a last resort."""
    every = range(problem.device_count)
    return [device for device in every if not is_core(problem.topology.devices[device])] or list(every)


def _sites(problem: Problem, homes: Mapping[Path, int], default: int) -> list[int | None]:
    """[op] → device of its tensor, module or first placed input, else `default`; None for zero-time sources."""
    reads = problem.graph.edges_into
    found: list[int | None] = [None] * problem.op_count
    for number in problem.topological:
        op = problem.graph.ops[number]
        path = (*_names(op.module), op.id)
        own = (homes[path[:length]] for length in range(len(path), 0, -1) if path[:length] in homes)
        read = (found[problem.graph.index[edge.source]] for edge in reads[op.id])
        works = reads[op.id] or any(problem.duration[number])
        found[number] = next(chain(own, (here for here in read if here is not None)), default if works else None)
    return found


def _of_block(problem: Problem, wished: Sequence[int | None], ops: Sequence[int]) -> int | None:
    """The device of the op with the largest weights in a block; None if no op of the block has a device."""
    own = [op for op in ops if op < problem.op_count and wished[op] is not None]
    return wished[max(own, key=lambda op: problem.graph.ops[op].weight_bytes)] if own else None


def _weights(graph: OpGraph) -> _Part:
    """The modules and tensors of a graph; each tensor counts under its first name only."""
    stored = {(*_names(op.module), op.id): op.weight_bytes for op in graph.ops if op.weight_bytes}
    for path in chain.from_iterable(_ties(graph)):
        stored.setdefault(path, 0)
    return _part((), list(stored.items()))


def _part(path: Path, stored: Sequence[tuple[Path, int]]) -> _Part:
    """The module that holds these tensors, or the tensor at this path."""
    inside: dict[Path, list[tuple[Path, int]]] = {}
    for tensor, size in stored:
        if tensor != path:
            inside.setdefault(tensor[: len(path) + 1], []).append((tensor, size))
    return _Part(path, sum(size for _, size in stored), tuple(_part(*each) for each in inside.items()))


def _ties(graph: OpGraph) -> list[list[Path]]:
    """The sorted paths of each tensor that has several names; modules are opened in this order."""
    groups: dict[str, list[str]] = {}
    for name, first in (graph.capture or {}).get("ties", {}).items():
        groups.setdefault(first, [first]).append(name)
    return [[(*name.split(".")[:-1], name) for name in sorted(names)] for names in groups.values()]


def _whole_classes(graph: OpGraph) -> dict[str, list[Path]]:
    """Class → its modules, for the classes that the model says not to split."""
    found = (graph.capture or {}).get("no_split", {})
    return {name: [_names(path) for path in paths] for name, paths in found.items()}


def _names(path: str | None) -> Path:
    return tuple(path.split(".")) if path else ()


def _holds(outer: Path, inner: Path) -> bool:
    return inner[: len(outer)] == outer


def m_topo(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of m-TOPO (2020), or None if its placement does not fit in memory.

    In program order, ops fill the first device up to a cap, then the second, and so on. The cap is an equal share of
    all footprints plus the largest footprint, and never exceeds the device's memory. Three rules are not in the paper:
    a block that the current device may not run goes to the device with most room; op times set the shares if there are
    no footprints; and the placed ops are list-scheduled.
    """
    order = program_order(instance)
    sites = fitted(instance, _in_turn(instance, order), order, fixed)
    return None if sites is None else list_schedule(instance, priority, sites)


def _in_turn(instance: Instance, order: Sequence[int]) -> list[int | None]:
    """[block] → the device that is being filled at the block's first op; None for blocks of sources only."""
    sizes, capacity = instance.footprint, instance.capacity
    if not any(sizes):
        sizes = tuple(int(sum(map(instance.mean_duration.__getitem__, ops))) for ops in instance.members)
        capacity = (None,) * instance.device_count
    cap = sum(sizes) // instance.device_count + max(sizes)
    limits = [cap if room is None else min(cap, room) for room in capacity]
    wished: list[int | None] = [None] * len(sizes)
    turn, used, counted = 0, 0, set[int]()
    for op in order:
        if op in instance.sources or wished[instance.block[op]] is not None:
            continue
        read = (instance.block[source] for source, _ in instance.source_arcs[op])
        added = {instance.block[op], *read} - counted
        size = sum(sizes[block] for block in added)
        if used + size > limits[turn] and turn + 1 < instance.device_count:
            turn, used = turn + 1, 0
        wished[instance.block[op]] = turn
        used += size
        counted |= added
    return wished
