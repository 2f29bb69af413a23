"""Machine code made by another process while the search goes on: once for all on a machine, 20 s.

As a program, ``python -m dlplacer.solvers.local_search.compile_ahead``, it does so ahead of any search.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from math import inf

from dlplacer.solvers.decode.decode import KERNELS, Rule, decode
from dlplacer.solvers.decode.machine_code import Kernel, code_folder, is_kept
from dlplacer.solvers.decode.runs import run_from, take_over
from dlplacer.solvers.ilp.solver_thread import in_thread
from dlplacer.solvers.instance.time_limit import OutOfTimeError
from dlplacer.solvers.local_search.moves import anneal
from dlplacer.solvers.local_search.placement_annealing import PLACEMENT_CODE

ANNEALING_CODE = (run_from, take_over, anneal)
"""Kernels of annealing."""

HEURISTICS_CODE = KERNELS
"""Kernels of heuristics."""

ALL_CODE = (*ANNEALING_CODE, *HEURISTICS_CODE, *PLACEMENT_CODE)

_LOAD_S, _COMPILE_S, _POLL_S = 0.3, 12.0, 0.05
"""Seconds to load and to compile annealing's code on two cores, measured: 0.2 and 11; and between two looks for it."""

_compiling: ContextVar[subprocess.Popen[bytes] | None] = ContextVar("compiling", default=None)


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Have code compiled by a process of its own, which ends with the context, where it is not kept yet.

    It takes one of the processors meanwhile: the search before annealing is slower, but annealing itself would wait for
    as long, and at a short limit never begin. What is compiled when the context is left stays, function by function.
    """
    if code_folder() is None or is_kept(ALL_CODE):
        yield
        return
    try:
        # A Ctrl-C of the terminal is for whoever searches, and ends this with the search.
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )
    except OSError:
        # No room for another process, or no interpreter to start: annealing compiles for itself if it has the time.
        yield
        return
    before = _compiling.set(process)
    try:
        yield
    finally:
        _compiling.reset(before)
        process.kill()
        process.wait()


def seconds_to_load(patience_s: float) -> float:
    """Seconds until annealing can begin: to load its code, or to compile it, if nobody else does.

    Parameters
    ----------
    patience_s
        How long to wait for whoever compiles it.

    Returns
    -------
    float
        Seconds, at most; infinite where another process is still at it.
    """
    process, until = _compiling.get(), time.monotonic() + patience_s
    while process is not None and process.poll() is None and not is_kept(ANNEALING_CODE):
        if time.monotonic() >= until:
            return inf
        time.sleep(_POLL_S)
    return _LOAD_S if is_kept(ANNEALING_CODE) else _COMPILE_S


def compile_in_thread(code: Collection[Kernel], is_over: Callable[[], bool]) -> bool:
    """True once kernels are compiled, in a thread of this process that is left behind when it is over."""

    def look() -> bool:
        if is_over():
            raise OutOfTimeError
        return False

    if is_kept(code):
        return True
    try:
        in_thread(partial(compile_all, code), inf, look, lambda: None)
    except OutOfTimeError:
        return False
    return True


def compile_all(code: Collection[Kernel] = ALL_CODE) -> None:
    """Call these kernels on two ops, so that they are compiled and kept; first those that annealing calls."""
    from dlplacer.core.graph import OpGraph
    from dlplacer.core.op import Edge, Op
    from dlplacer.core.options import Options
    from dlplacer.core.topology import Device, Link, Topology
    from dlplacer.problem.problem import build_problem
    from dlplacer.solvers.decode.arrays import tables_of
    from dlplacer.solvers.instance.instance import build_instance
    from dlplacer.solvers.local_search.anneal import Chain
    from dlplacer.solvers.local_search.placement_annealing import PlacementAnnealing
    from dlplacer.solvers.local_search.serial_annealing import path_tables

    ops = tuple(Op(name, "op", {"device": 1e-3}) for name in ("first", "last"))
    graph = OpGraph(ops, (Edge("first", "last", 1000),))
    devices = tuple(Device(name, "device") for name in ("0", "1"))
    topology = Topology(devices, (), (Link("0", "1", 1e9, 1e-6),))
    instance = build_instance(build_problem(graph, topology, Options()))
    found = decode(instance, Rule(instance.order), fast=False)
    if found is not None and set(ANNEALING_CODE) <= set(code):
        Chain(tables_of(instance), found).go_on(1, 1.0, 0)
    if set(HEURISTICS_CODE) <= set(code):
        for works_on in (False, True):
            decode(instance, Rule(instance.order, works_on=works_on), fast=True)
    if set(PLACEMENT_CODE) <= set(code):
        search = PlacementAnnealing(path_tables(instance, instance.order), instance.capacity)
        search.begin([0] * len(instance.members))
        search.cool((1.0, 1.0), 11.0, 0, iter((False, True)).__next__)


if __name__ == "__main__":
    compile_all()
