"""Contiguous splits against all of them."""

from itertools import combinations, pairwise, permutations

import numpy as np
import pytest

import dlplacer as dp
from dlplacer.planning.fit.chain import ChainCosts
from dlplacer.planning.fit.splits import SPLITS


def random_chain(rng: np.random.Generator, alike: bool) -> ChainCosts:
    ops, devices = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    time_s = rng.integers(1, 9, (ops, devices)).astype(float)
    capacities = rng.integers(3, 20, devices).astype(float)
    crossing_s = rng.integers(0, 4, (ops + 1, devices, devices)).astype(float)
    if alike:
        time_s[:], capacities[:], crossing_s[:] = time_s[:, :1], capacities[0], 1.0
    crossing_s[:, range(devices), range(devices)] = 0.0
    names = tuple(dp.Op(f"op{number}", "layer") for number in range(ops))
    machine = tuple(dp.Device(f"gpu{number}") for number in range(devices))
    return ChainCosts(names, machine, time_s, rng.integers(1, 6, ops).astype(float), capacities, crossing_s)


def naive_least(chain: ChainCosts, largest: bool) -> float:
    """Over every set and order of devices and every cut, by the definition of the objective."""
    best, count = np.inf, len(chain.ops)
    for used in range(1, len(chain.devices) + 1):
        for devices in permutations(range(len(chain.devices)), used):
            for cuts in combinations(range(1, count), used - 1):
                ends = (0, *cuts, count)
                runs = [range(*pair) for pair in pairwise(ends)]
                held = [sum(chain.sizes[op] for op in run) for run in runs]
                if any(size > chain.capacities[device] for size, device in zip(held, devices, strict=True)):
                    continue
                loads = [sum(chain.time_s[op, d] for op in run) for run, d in zip(runs, devices, strict=True)]
                loads += [chain.crossing_s[cut, *devices[at : at + 2]] for at, cut in enumerate(cuts)]
                best = min(best, max(loads) if largest else sum(loads))
    return best


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("largest", [False, True])
def test_the_split_is_the_best_of_all(seed: int, largest: bool) -> None:
    chain = random_chain(np.random.default_rng(seed), alike=seed % 2 == 1)
    split = chain.best_split(largest)
    found = np.inf if split is None else chain.value_s(split, largest)
    assert found == naive_least(chain, largest)
    assert split is None or chain.fits(split)


def test_greedy_fill_counts_weights_that_embedding_and_head_share_once() -> None:
    ops, gpu = tuple(dp.Op(name, name) for name in ("embedding", "layer", "head")), (dp.Device("gpu0"),)
    nothing = np.zeros((4, 1, 1))
    for room, placed in ((10.0, [0, 0, 0]), (9.0, None)):
        chain = ChainCosts(ops, gpu, np.ones((3, 1)), np.array([4.0, 5.0, 5.0]), np.array([room]), nothing, 0, 4.0)
        assert SPLITS["greedy"](chain) == placed
