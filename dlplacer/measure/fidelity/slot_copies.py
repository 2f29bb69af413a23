"""How long ops keep their cores busy with what other processes read, where devices are processes."""

from collections import defaultdict
from collections.abc import Collection

from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.executable import Executable


def slot_copies(
    plan: Plan, executable: Executable, caller: str, seen_by_all: Collection[str], s_per_byte: float
) -> dict[str, float]:
    """Op → seconds for writing its tensors to memory that others see, and for reading theirs, as the first on a device.

    Parameters
    ----------
    caller
        The device whose ops run in the caller's process, which gets the outputs and gradients.
    seen_by_all
        Ops whose tensors lie where all processes see them.
    s_per_byte
        Of a hand-over; half of it is the writer's, and half the reader's.
    """
    found: dict[str, float] = defaultdict(float)
    producer = {edge.tensor: edge.source for edge in plan.graph.edges}
    rank = {op: place for ops in plan.order.values() for place, op in enumerate(ops)}
    readers = defaultdict(list)
    for edge in plan.graph.edges:
        readers[edge.tensor, plan.placement[edge.target]].append(edge.target)
    sent: dict[str, int] = {}
    for moved in plan.transfers:
        if producer[moved.tensor] not in seen_by_all:
            sent[moved.tensor] = moved.bytes
            first = min(readers[moved.tensor, moved.target], key=rank.__getitem__)
            found[first] += s_per_byte / 2 * moved.bytes
    for tensor, size in {**_results(plan, executable, caller), **sent}.items():
        found[producer.get(tensor) or executable.producer[tensor]] += s_per_byte / 2 * size
    return dict(found)


def _results(plan: Plan, executable: Executable, caller: str) -> dict[str, int]:
    """Tensor → bytes, of the outputs and gradients that other devices than the caller's make and return."""
    size = {edge.tensor: edge.bytes for edge in plan.graph.edges}
    ends = [(code.reads[0], code.op) for code in executable.of_role("gradient")]
    ends += [(name, executable.producer[name]) for name in executable.outputs]
    return {
        tensor: size.get(tensor, 0)
        for tensor, op in ends
        if plan.placement[op] == plan.placement[executable.producer[tensor]] != caller
    }
