"""The search over placements of stages against all of them."""

from itertools import product

import numpy as np
import pytest
from solvers.serial_chains import tight_chain

from dlplacer.core.options import Options
from dlplacer.problem.problem import build_problem
from dlplacer.solvers.decode.decode import in_sequence
from dlplacer.solvers.decomposition.stage_bound import build_stages
from dlplacer.solvers.decomposition.stage_search import StageSearch
from dlplacer.solvers.instance.instance import build_instance

SIX, DEVICES = 6, 3


@pytest.mark.parametrize("seed", range(5))
def test_the_placement_is_the_shortest_of_all_that_keep_to_memory(seed: int) -> None:
    instance = build_instance(build_problem(*tight_chain(seed, SIX, DEVICES, 1.2), Options(memory="sum")))
    rooms = np.array([0 if room is None else room for room in instance.capacity])
    lengths = {
        place: in_sequence(instance, list(place), instance.order).makespan
        for place in product(range(DEVICES), repeat=SIX)
        if all(sum(instance.footprint[b] for b in range(SIX) if place[b] == d) <= rooms[d] for d in range(DEVICES))
    }
    found = StageSearch(build_stages(instance, SIX - 1, 10.0)).improve(dict.fromkeys(range(SIX), 0), rooms, 30.0, 0)
    if not lengths:
        assert found is None
        return
    assert found is not None
    assert lengths[tuple(found[block] for block in range(SIX))] == min(lengths.values())
