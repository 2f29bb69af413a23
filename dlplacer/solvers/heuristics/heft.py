"""HEFT: heterogeneous earliest finish time (Topcuoglu, Hariri and Wu 2002), with insertion, memory-aware."""

from dlplacer.solvers.decode.decode import Rule, decode
from dlplacer.solvers.heuristics.common.memory_state import Fixed, Priority
from dlplacer.solvers.heuristics.common.ready_order import in_order
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule


def heft(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule of HEFT, or None if an op fits on no device that it may use.

    Ops are taken by rising `priority`, which must put every op after all that it reads; each goes to the device where
    it ends first, into the earliest gap that holds it. Where there is traffic, what it reads goes into gaps of links.
    """
    return decode(instance, Rule(in_order(priority), fixed))
