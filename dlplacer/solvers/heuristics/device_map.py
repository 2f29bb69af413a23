"""Fill the devices in order: what device maps do today (`device_map="auto"` of Hugging Face Accelerate)."""

from dlplacer.solvers.heuristics.common.memory_state import Fixed, Priority
from dlplacer.solvers.heuristics.common.ready_order import program_order
from dlplacer.solvers.heuristics.fill_devices import filled, with_sizes
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule, in_sequence

_BUFFER = 1.25
"""Mean block sizes that a device takes beyond its share: Accelerate's `get_balanced_memory` has the same factor."""


def sequential(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of a device map, or None if memory does not suffice for it.

    Blocks, which `by_module` makes of whole modules, fill the devices in order. As Accelerate's balanced map has it,
    every device but the last takes at most an equal share of all footprints plus 1.25 times their mean, so that
    unlimited memory is shared out too; the last takes what is left. Every device runs its ops in the program's
    order, each as soon as its data are there: a device map has no priorities.

    Other than in Accelerate: footprints count the activations too; nothing is offloaded to a host.
    """
    sized = with_sizes(instance)
    taken = [size for size in sized.footprint if size]
    cap = sum(taken) // instance.device_count + int(_BUFFER * sum(taken) / max(1, len(taken)))
    sites = filled(sized, [*[cap] * (instance.device_count - 1), None], fixed)
    if sites is None:
        return None
    return in_sequence(instance, [sites[block] for block in instance.block], program_order(instance))
