"""Pins and colocation as a user writes them, by op, module or glob, as constraints of a graph."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TypeAlias

from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import InputError
from dlplacer.core.expect import refuse, tuple_of, unknown
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology

Pins: TypeAlias = Mapping[str, str] | Iterable[str | tuple[str, str]]
"""Op, module or glob → name or type of a device; also as texts: ``"encoder.*=gpu0"``."""

Together: TypeAlias = Iterable[str | Iterable[str]]
"""Sets of ops that run on one device, each a pattern or several."""

_GLOB = "*?["


def constrained(
    graph: OpGraph,
    topology: Topology | None,
    pins: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    colocate: Iterable[str | Iterable[str]] = (),
) -> OpGraph:
    """The graph with these pins and sets of ops that stay together, added to those that it has.

    A pattern means an op of that id, else all ops of a module and of the modules in it (backward ops and parameters
    among them), else all ops whose id or module a glob matches; the name of an op that a rewrite replaced means the ops
    made from it.

    `topology`: The machine with the devices that pins name; None allows no pins. `colocate`: Each a pattern or several,
    separated by commas or as a list: what they match runs on one device.

    Raises InputError if a pattern matches nothing (the nearest names are told), a device is unknown, or pins contradict
    each other.
    """
    pairs = pins.items() if isinstance(pins, Mapping) else pins
    added = graph.constraints
    known = [] if topology is None else list(dict.fromkeys((*topology.device_index, *topology.device_types)))
    for pattern, device in pairs:
        if device not in known:
            raise unknown("device", device, known, f"pin {pattern!r}: the topology")
        pinned = dict.fromkeys(matching(graph, pattern), device)
        try:
            added = added.added(Constraints(pinned))
        except InputError as error:
            raise InputError(f"pin {pattern!r} = {device!r}: {error}") from None
    sets = tuple(_together(graph, patterns) for patterns in colocate)
    added = added.added(Constraints(colocate=sets))
    # A graph of 106,000 ops takes seconds to make anew.
    return graph if added == graph.constraints else replace(graph, constraints=added)


def matching(graph: OpGraph, pattern: str) -> tuple[str, ...]:
    """The ops that a pattern matches, in file order; see `constrained`.

    Raises InputError if there are none; the message names the nearest ops and modules.
    """
    if pattern in graph.index:
        return (pattern,)
    found = tuple(op.id for op in graph.ops if any(path == pattern for path in _paths(op.module)))
    found = found or tuple(op.id for op in graph.ops if pattern in op.origin)
    if not found and any(sign in pattern for sign in _GLOB):
        found = tuple(
            op.id for op in graph.ops if any(fnmatchcase(name, pattern) for name in (op.id, *_paths(op.module)))
        )
    if not found:
        modules = dict.fromkeys(path for op in graph.ops for path in _paths(op.module))
        raise unknown("op or module", pattern, (*graph.index, *modules), f"graph {graph.name!r}")
    return found


def parsed_pin(text: str, topology: Topology) -> tuple[str, str]:
    """Pattern and device of ``OP|MODULE=DEVICE``; names may hold ``=`` themselves."""
    places = [place for place, sign in enumerate(text) if sign == "="]
    pairs = [(text[:place].strip(), text[place + 1 :].strip()) for place in places]
    known = {*topology.device_index, *topology.device_types}
    best = next((pair for pair in pairs if pair[1] in known), pairs[-1] if pairs else ("", ""))
    if not all(best):
        raise InputError(f"pin {text!r} is not understood; write OP=DEVICE or MODULE=DEVICE, as in conv1=gpu0")
    return best


def pins_of(pins: Pins, machine: Topology) -> tuple[tuple[str, str], ...]:
    """(pattern, device) of pins."""
    listed = tuple(pins.items()) if isinstance(pins, Mapping) else pins
    found = []
    for pair in tuple_of("", "pins", listed, (str, tuple), "texts as 'op=device', or (pattern, device) pairs"):
        pair = parsed_pin(pair, machine) if isinstance(pair, str) else pair
        if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise refuse("", "pins", pair, "a dict from op, module or glob to device: {'Mixed_5b.*': 'gpu1'}")
        found.append(pair)
    return tuple(found)


def together_of(colocate: Together) -> tuple[str | tuple[str, ...], ...]:
    """Patterns, and sets of patterns."""
    entries = tuple_of("", "colocate", colocate, object, "patterns, or lists of patterns")
    return tuple(
        entry if isinstance(entry, str) else tuple_of("colocate", "a set", entry, str, "patterns of ops or modules")
        for entry in entries
    )


def _together(graph: OpGraph, patterns: str | Iterable[str]) -> tuple[str, ...]:
    listed = _listed(graph, patterns) if isinstance(patterns, str) else list(patterns)
    ops = tuple(dict.fromkeys(name for pattern in listed for name in matching(graph, pattern)))
    if len(ops) < 2:
        shown = ",".join(listed)
        raise InputError(
            f"colocation {shown!r} means {'one op' if ops else 'nothing'} alone; name two or more, as in "
            "'encoder.*' or 'conv1,conv2'"
        )
    return ops


def _listed(graph: OpGraph, text: str) -> list[str]:
    """The patterns between commas; a name that holds commas itself is one."""
    if text in graph.index:
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()]


def _paths(module: str | None) -> Iterator[str]:
    """The path of a module and of all that hold it."""
    parts = (module or "").split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1) if module)
