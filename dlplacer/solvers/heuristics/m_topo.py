"""m-TOPO: devices filled in topological order (Jeon et al. 2020, Baechi, SoCC), memory-aware."""

from dlplacer.solvers.heuristics.common.memory_state import Fixed, Priority
from dlplacer.solvers.heuristics.fill_devices import filled, with_sizes
from dlplacer.solvers.heuristics.list_schedule import list_schedule
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule


def m_topo(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of m-TOPO, or None if memory does not suffice for its placement.

    In the program's order, which is a topological one, ops fill the first device up to a cap, then the second, and so
    on. The cap is an equal share of all footprints plus the largest of them, and never more than the device's memory.

    Other than in the paper: pins are honoured (`filled`), a graph without footprints is shared out by time, and as the
    paper leaves the order on a device to the runtime, the ops are list-scheduled on the placement.
    """
    sized = with_sizes(instance)
    cap = sum(sized.footprint) // instance.device_count + max(sized.footprint)
    sites = filled(sized, [cap] * instance.device_count, fixed)
    return None if sites is None else list_schedule(instance, priority, sites)
