"""Machine code compiled where there is time for it, once for all on a machine: 20 s.

As a program, ``python -m dlplacer.solvers.local_search.compile_ahead``, it does so ahead of any search.
"""

from collections.abc import Callable, Collection
from functools import partial
from math import inf

from dlplacer.solvers.decode.decode import KERNELS, decode
from dlplacer.solvers.decode.machine_code import Kernel, is_kept
from dlplacer.solvers.ilp.solver_thread import in_thread
from dlplacer.solvers.instance.time_limit import OutOfTimeError
from dlplacer.solvers.local_search.anneal import ANNEALING_CODE
from dlplacer.solvers.local_search.placement_annealing import PLACEMENT_CODE

ALL_CODE = (*ANNEALING_CODE, *KERNELS, *PLACEMENT_CODE)

_COMPILE_S = 12.0
"""Seconds to compile code on two cores."""


def compiled_in_time(code: Collection[Kernel], seconds: float, is_over: Callable[[], bool]) -> bool:
    """True once kernels are compiled, in a thread of this process that is left behind when it is over.

    Parameters
    ----------
    seconds
        The time that there is; if it is too short, and they are not kept, nothing is compiled.
    """

    def look() -> bool:
        if is_over():
            raise OutOfTimeError
        return False

    if is_kept(code):
        return True
    try:
        if seconds > _COMPILE_S:
            in_thread(partial(compile_all, code), inf, look, lambda: None)
    except OutOfTimeError:
        return False
    return seconds > _COMPILE_S


def compile_all(code: Collection[Kernel] = ALL_CODE) -> None:
    """Call these kernels on two ops, so that they are compiled and kept; first those that annealing calls."""
    from dlplacer.core.graph import OpGraph
    from dlplacer.core.op import Edge, Op
    from dlplacer.core.options import Options
    from dlplacer.core.topology import Device, Link, Topology
    from dlplacer.problem.problem import build_problem
    from dlplacer.solvers.decode.arrays import tables_of
    from dlplacer.solvers.instance.instance import build_instance
    from dlplacer.solvers.instance.placement_loads import path_tables
    from dlplacer.solvers.local_search.anneal import Chain
    from dlplacer.solvers.local_search.placement_annealing import PlacementAnnealing

    ops = tuple(Op(name, "op", {"device": 1e-3}) for name in ("first", "last"))
    graph = OpGraph(ops, (Edge("first", "last", 1000),))
    devices = tuple(Device(name, "device") for name in ("0", "1"))
    topology = Topology(devices, (), (Link("0", "1", 1e9, 1e-6),))
    instance = build_instance(build_problem(graph, topology, Options()))
    found = decode(instance, instance.order, fast=False)
    if found is not None and set(ANNEALING_CODE) <= set(code):
        Chain(tables_of(instance), found).go_on(1, 1.0, 0)
    if set(KERNELS) <= set(code):
        for works_on in (False, True):
            decode(instance, instance.order, works_on=works_on, fast=True)
    if set(PLACEMENT_CODE) <= set(code):
        search = PlacementAnnealing(path_tables(instance, instance.order), instance.capacity)
        search.begin([0] * len(instance.members))
        search.cool((1.0, 1.0), 11.0, 0, iter((False, True)).__next__)


if __name__ == "__main__":
    compile_all()
