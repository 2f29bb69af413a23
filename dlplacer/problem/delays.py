"""Delays of all tensors between all devices, computed once for every distinct rate and latency of a route."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dlplacer.core.topology import Topology
from dlplacer.core.units import ticks
from dlplacer.problem.routes import RoutesByPair, route_lines

NOWHERE, HERE = -2, -1
"""Lines of pairs of devices that no route joins, and of a device with itself."""

Matrix = tuple[tuple[int | None, ...], ...]
"""[source device][target device] → ticks; 0 on the diagonal, None where no route leads."""


@dataclass(frozen=True)
class Lines:
    """The routes of one table as lines over the bytes.

    Attributes
    ----------
    lines
        Distinct (seconds per byte, seconds for none).
    between
        [source device][target device] → position in `lines`, or `HERE` or `NOWHERE`.
    """

    lines: tuple[tuple[Fraction, Fraction], ...]
    between: tuple[tuple[int, ...], ...]

    def seconds(self, size_bytes: int) -> tuple[Fraction, ...]:
        """[line] → delay of a tensor."""
        return tuple(size_bytes * s_per_byte + latency_s for s_per_byte, latency_s in self.lines)


def lines_of(topology: Topology, routes: Sequence[RoutesByPair], delay: str) -> list[Lines]:
    """[size] → lines of its routes; sizes that share a table share the lines too."""
    known: dict[int, Lines] = {}
    for table in routes:
        if id(table) not in known:
            known[id(table)] = _lines(topology, table, delay)
    return [known[id(table)] for table in routes]


def matrices(lines: Sequence[Lines], seconds: Sequence[tuple[Fraction, ...]], tick_s: Fraction) -> tuple[Matrix, ...]:
    """[size] → its delays in ticks; equal ones are one object."""
    known: dict[tuple[int, tuple[int, ...]], Matrix] = {}
    found = []
    for line, values in zip(lines, seconds, strict=True):
        in_ticks = tuple(ticks(value, tick_s) for value in values)
        key = id(line), in_ticks
        if key not in known:
            look_up = [*in_ticks, None, 0].__getitem__
            known[key] = tuple(tuple(map(look_up, row)) for row in line.between)
        found.append(known[key])
    return tuple(found)


def _lines(topology: Topology, table: RoutesByPair, delay: str) -> Lines:
    numbers: dict[tuple[Fraction, Fraction], int] = {}
    names = [device.id for device in topology.devices]
    line_of = route_lines(topology, delay)

    def line(source: str, target: str) -> int:
        if source == target:
            return HERE
        route = table.get((source, target))
        return NOWHERE if route is None else numbers.setdefault(line_of(route), len(numbers))

    between = tuple(tuple(line(source, target) for target in names) for source in names)
    return Lines(tuple(numbers), between)
