"""The code that is compiled ahead is the code that searches call."""

from typing import Any

from benchmarks.families import FAMILIES
from benchmarks.machines import star
from solvers.helpers import one_worker
from solvers.serial_chains import tight_chain

from dlplacer.core.options import Options
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.decode import machine_code
from dlplacer.solvers.heuristics.list_rules import heft, list_schedule
from dlplacer.solvers.instance.instance import build_instance
from dlplacer.solvers.instance.placement_loads import serial_path
from dlplacer.solvers.instance.schedule import Incumbent
from dlplacer.solvers.local_search import compile_ahead
from dlplacer.solvers.local_search.anneal import anneal_schedule
from dlplacer.solvers.local_search.placement_annealing import anneal_serial

_FOREVER_S = 200.0


def test_it_is_the_code_that_annealing_and_heuristics_call() -> None:
    compile_ahead.compile_all()
    instance = build_instance(build_problem(FAMILIES["layered"](150, 0, 3.0), star(4), Options()))
    incumbent = Incumbent(one_worker(_FOREVER_S))
    assert incumbent.offer(list_schedule(instance, instance.order))
    anneal_schedule(instance, incumbent, 0.3)
    assert heft(instance, instance.order) is not None
    chain = build_instance(build_problem(*tight_chain(0, 30, 3, 1.2), Options()))
    short = Incumbent(one_worker(_FOREVER_S))
    assert short.offer(list_schedule(chain, chain.order))
    anneal_serial(chain, short, serial_path(chain), 0.3)
    used: tuple[Any, ...] = tuple(map(machine_code.machine_code, compile_ahead.ALL_CODE))
    assert machine_code.is_kept(compile_ahead.ALL_CODE)
    assert {len(one.signatures) for one in used} == {1}
