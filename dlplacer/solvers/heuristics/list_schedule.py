"""Work-conserving list scheduling, memory-aware."""

from dlplacer.solvers.decode.decode import Rule, decode
from dlplacer.solvers.heuristics.common.memory_state import Fixed, Priority
from dlplacer.solvers.heuristics.common.ready_order import in_order
from dlplacer.solvers.instance.instance import Instance
from dlplacer.solvers.instance.schedule import Schedule


def list_schedule(instance: Instance, priority: Priority, fixed: Fixed = None) -> Schedule | None:
    """The schedule in which no device idles while an op could run on it, or None if memory does not suffice.

    Of the ops whose data are there, a free device takes the preferred one. On machines of unequal devices, an op is
    left to another device that would end it earlier.
    """
    return decode(instance, Rule(in_order(priority), fixed, works_on=True))
