"""Edges that carry only an order: an op that overwrites a tensor waits for all its readers."""

from collections.abc import Iterator, Mapping, Sequence

from dlplacer.core.op import Edge
from dlplacer.frontend.torch.executable import OpCode


def write_after_read(codes: Mapping[str, OpCode], edges: Sequence[Edge]) -> Iterator[Edge]:
    """Zero-byte edges from the readers of a parameter or buffer to the op that overwrites it.

    An update or mutation changes the tensor in place. Readers that it depends on through data need no further edge.
    """
    readers: dict[str, list[str]] = {}
    sources: dict[str, set[str]] = {}
    for edge in edges:
        readers.setdefault(edge.source, []).append(edge.target)
        sources.setdefault(edge.target, set()).add(edge.source)
    written = {code.name: code.op for code in codes.values() if code.role in ("parameter", "buffer")}
    for code in codes.values():
        # Data dependences do not imply this order: an update reads weight and gradient, and not what others make of the
        # weight.
        if code.role not in ("mutation", "update"):
            continue
        for reader in dict.fromkeys(readers.get(written[code.name], ())):
            if reader != code.op and reader not in sources[code.op]:
                yield Edge(reader, code.op, 0)
