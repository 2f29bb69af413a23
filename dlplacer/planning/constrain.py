"""Pins and colocated sets, which the user gives by op, module or glob, as constraints of a graph."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TypeAlias, TypeVar

from dlplacer.core.constraints import Constraints
from dlplacer.core.errors import InputError
from dlplacer.core.expect import Kinds, refuse, unknown
from dlplacer.core.graph import OpGraph
from dlplacer.core.topology import Topology

Pins: TypeAlias = Mapping[str, str] | Iterable[str | tuple[str, str]]
"""Op, module or glob → name or type of a device; strings such as ``"encoder.*=gpu0"`` are also allowed."""

T = TypeVar("T")
Together: TypeAlias = Iterable[str | Iterable[str]]
"""Sets of ops that run on one device, each given by one or several patterns."""

_GLOB = "*?["


def constrained(
    graph: OpGraph,
    topology: Topology | None,
    pins: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    colocate: Iterable[str | Iterable[str]] = (),
) -> OpGraph:
    """The graph with these pins and colocated sets, in addition to its own constraints.

    A pattern matches the first of these that exists: the op of that id; all ops of a module and its sub-modules,
    backward ops and parameters too; ops that a rewrite made from the op of that id; ops whose id or module fits a glob.

    `topology`: The machine with the devices that pins name; None allows no pins. `colocate`: Sets of ops that share a
    device; each is one or several patterns, in a list or separated by commas.

    Raises InputError if a pattern matches nothing (the message lists similar names), a device is unknown, pins
    contradict each other, or a colocated set has fewer than two ops.
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
    # Making a new graph of 106,000 ops takes seconds.
    return graph if added == graph.constraints else replace(graph, constraints=added)


def matching(graph: OpGraph, pattern: str) -> tuple[str, ...]:
    """The ops that a pattern matches, in file order; see `constrained`.

    Raises InputError if there are none; the message lists ops and modules with similar names.
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
    """Pattern and device of ``OP|MODULE=DEVICE``; the names may contain ``=``."""
    places = [place for place, sign in enumerate(text) if sign == "="]
    pairs = [(text[:place].strip(), text[place + 1 :].strip()) for place in places]
    known = {*topology.device_index, *topology.device_types}
    best = next((pair for pair in pairs if pair[1] in known), pairs[-1] if pairs else ("", ""))
    if not all(best):
        raise InputError(f"pin {text!r} is not understood; write OP=DEVICE or MODULE=DEVICE, as in conv1=gpu0")
    return best


def pins_of(pins: Pins, machine: Topology) -> tuple[tuple[str, str], ...]:
    """The pins as (pattern, device) pairs."""
    listed = tuple(pins.items()) if isinstance(pins, Mapping) else pins
    found = []
    for pair in tuple_of("", "pins", listed, (str, tuple), "texts as 'op=device', or (pattern, device) pairs"):
        pair = parsed_pin(pair, machine) if isinstance(pair, str) else pair
        if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise refuse("", "pins", pair, "a dict from op, module or glob to device: {'Mixed_5b.*': 'gpu1'}")
        found.append(pair)
    return tuple(found)


def together_of(colocate: Together) -> tuple[str | tuple[str, ...], ...]:
    """The checked sets, each as a pattern or a tuple of patterns."""
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
            f"colocation {shown!r} matches only {'one op' if ops else 'no op'}; name two or more, as in "
            "'encoder.*' or 'conv1,conv2'"
        )
    return ops


def _listed(graph: OpGraph, text: str) -> list[str]:
    """The patterns in a text, separated by commas; a text that is the id of an op is one pattern."""
    if text in graph.index:
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()]


def _paths(module: str | None) -> Iterator[str]:
    """The paths of a module and of all modules that contain it, outermost first."""
    parts = (module or "").split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1) if module)


def tuple_of(owner: str, name: str, value: Iterable[T], kinds: Kinds, accepted: str) -> tuple[T, ...]:
    """The entries of an iterable as a tuple; raises InputError for a string, a mapping, or an entry of another type."""
    if type(value) is not tuple:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            raise refuse(owner, name, value, f"a tuple of {accepted}")
        value = tuple(value)
    for position, entry in enumerate(value):
        if not isinstance(entry, kinds):
            raise refuse(owner, f"{name}[{position}]", entry, f"a tuple of {accepted}")
    return value
