"""Compilation of the machine code when time permits, once per machine.

``python -m dlplacer.solvers.local_search.compile_ahead`` compiles it before any search.
"""

from collections.abc import Callable
from math import inf

from dlplacer.core.graph import OpGraph
from dlplacer.core.op import Edge, Op
from dlplacer.core.options import Options
from dlplacer.core.topology import Device, Link, Topology
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.decode.decode import decode
from dlplacer.solvers.decode.machine_code import is_kept, keep
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.time_limit import OutOfTimeError, counts_work, in_thread
from dlplacer.solvers.local_search.anneal import Chain

_COMPILE_S = 12.0
"""Seconds to compile the code on two cores."""


def compiled_in_time(seconds: float, is_over: Callable[[], bool]) -> bool:
    """Compile the kernels if time permits, in a thread that is left behind once `is_over()`; True if they are compiled.

    True also if the clock counts work, because such a search must not depend on caches.
    """

    def look() -> bool:
        if is_over():
            raise OutOfTimeError
        return False

    is_ready = counts_work() or is_kept()
    if is_ready or seconds <= _COMPILE_S:
        return is_ready
    try:
        in_thread(compile_all, inf, look, lambda: None)
    except OutOfTimeError:
        return False
    return True


def compile_all() -> None:
    """Call all kernels on a graph of two ops, so that they are compiled and cached."""
    ops = tuple(Op(name, "op", {"device": 1e-3}) for name in ("first", "last"))
    graph = OpGraph(ops, (Edge("first", "last", 1000),))
    devices = tuple(Device(name, "device") for name in ("0", "1"))
    topology = Topology(devices, (), (Link("0", "1", 1e9, 1e-6),))
    instance = build_instance(build_problem(graph, topology, Options()))
    for works_on in (False, True):
        found = decode(instance, instance.order, works_on=works_on, fast=True)
    assert found is not None
    Chain(instance, found).go_on(1, 1.0, 0)
    keep()


if __name__ == "__main__":
    compile_all()
