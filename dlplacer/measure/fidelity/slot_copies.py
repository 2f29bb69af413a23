"""How long ops keep their cores busy with what other processes read, where devices are processes.

Who writes pays for the bytes: their lines have to be fetched from the core that has read them. In a GNMT's step ops
that read 18 MB from the other process took no longer for it, and writing 6 MB took one core 1.9 ms.
"""

from collections import defaultdict
from collections.abc import Collection

from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.executable import Executable


def slot_copies(
    plan: Plan, executable: Executable, caller: str, seen_by_all: Collection[str], s_per_byte: float
) -> dict[str, float]:
    """Op → seconds for writing its tensors to memory that others see.

    Parameters
    ----------
    caller
        The device whose ops run in the caller's process, which gets the outputs and gradients.
    seen_by_all
        Ops whose tensors lie where all processes see them.
    s_per_byte
        Of a hand-over.
    """
    found: dict[str, float] = defaultdict(float)
    producer = {edge.tensor: edge.source for edge in plan.graph.edges}
    sent = {moved.tensor: moved.bytes for moved in plan.transfers if producer[moved.tensor] not in seen_by_all}
    for tensor, size in {**_results(plan, executable, caller), **sent}.items():
        found[producer.get(tensor) or executable.producer[tensor]] += s_per_byte * size
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
