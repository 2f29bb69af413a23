"""Placements of chains by the flow, against all of them."""

from dataclasses import replace
from itertools import groupby, product

import numpy as np
import pytest

import dlplacer as dp
from dlplacer.planning.fit.chain import ChainCosts
from dlplacer.planning.fit.layer_flow import best_placement, periods_of


def random_chain(seed: int) -> ChainCosts:
    """A chain whose ops come again in periods of one to three, between two others; the last shares with the first."""
    rng = np.random.default_rng(seed)
    ops, devices, period = int(rng.integers(3, 8)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    kinds = np.concatenate([[period], np.arange(ops - 2) % period, [period + 1]])
    time_s = rng.integers(1, 9, (period + 2, devices)).astype(float)[kinds]
    crossing_s = rng.integers(0, 4, (period + 2, devices, devices)).astype(float)
    crossing_s[:, range(devices), range(devices)] = 0.0
    names = tuple(
        dp.Op(f"op{number}", "layer", meta={"layer": number, "kinds": ["experts" if kind == 1 < period else "mlp"]})
        for number, kind in enumerate(kinds)
    )
    machine = tuple(dp.Device(f"gpu{number}") for number in range(devices))
    sizes = rng.integers(2, 6, period + 2).astype(float)[kinds]
    capacities = rng.integers(3, 20, devices).astype(float)
    return ChainCosts(names, machine, time_s, sizes, capacities, np.stack([crossing_s[0], *crossing_s[kinds]]), 0, 2.0)


def naive_fits(chain: ChainCosts, places: tuple[int, ...]) -> bool:
    held = [sum(size for size, place in zip(chain.sizes, places, strict=True) if place == d) for d in range(9)]
    held[places[0]] -= chain.shared_bytes if places[0] == places[-1] else 0
    return all(size <= room for size, room in zip(held, chain.capacities, strict=False))


def naive_value(chain: ChainCosts, places: tuple[int, ...], largest: bool) -> float:
    times = [chain.time_s[op, place] for op, place in enumerate(places)]
    if largest:
        return max(sum(time for time, place in zip(times, places, strict=True) if place == d) for d in {*places})
    return sum(times) + sum(chain.crossing_s[cut, places[cut - 1], places[cut]] for cut in range(1, len(places)))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("largest", [False, True])
def test_the_placement_is_the_best_of_all(seed: int, largest: bool) -> None:
    chain = random_chain(seed)
    every = product(range(len(chain.devices)), repeat=len(chain.ops))
    least = min((naive_value(chain, each, largest) for each in every if naive_fits(chain, each)), default=np.inf)
    known = chain.best_split() if seed % 2 else None
    found = best_placement(chain, 30, known, largest)
    assert found.optimal
    assert found.bound_s == pytest.approx(least, rel=1e-6)
    assert (found.placement is None) == np.isinf(least)
    if found.placement is not None:
        assert naive_fits(chain, found.placement)
        assert naive_value(chain, found.placement, largest) == least


@pytest.mark.parametrize("seed", range(20))
def test_limited_runs_are_one_per_device_in_an_order_but_for_experts(seed: int) -> None:
    chain = random_chain(seed)
    devices = len(chain.devices)
    follows = np.tri(devices, dtype=bool).T

    def allowed(places: tuple[int, ...]) -> bool:
        rest = [place for op, place in zip(chain.ops, places, strict=True) if op.meta["kinds"] != ["experts"]]
        runs = [place for place, _ in groupby(rest)]
        return runs == sorted({*runs}) and naive_fits(chain, places)

    every = product(range(devices), repeat=len(chain.ops))
    least = min((naive_value(chain, each, False) for each in every if allowed(each)), default=np.inf)
    found = best_placement(chain, 30, follows=follows)
    assert found.optimal
    assert found.bound_s == pytest.approx(least, rel=1e-5)
    assert found.placement is None or (allowed(found.placement) and naive_value(chain, found.placement, False) == least)


def test_a_device_that_returns_is_found_and_its_crossings_are_counted() -> None:
    # Both ends fit on the fast device beside one layer of three: 1 + 1 + 1, two crossings of 1, and two layers of 3.
    crossing_s = np.ones((6, 2, 2)) - np.eye(2)
    time_s = np.array([[1.0, 9.0], [1.0, 3.0], [1.0, 3.0], [1.0, 3.0], [1.0, 9.0]])
    ops = tuple(dp.Op(f"op{number}", "layer", meta={"kinds": ["layer"]}) for number in range(5))
    chain = ChainCosts(ops, (dp.Device("a"), dp.Device("b")), time_s, np.ones(5), np.array([3.0, 2.0]), crossing_s)
    found = best_placement(chain, 30)
    assert found.placement is not None
    assert chain.value_s(found.placement) == 11.0
    slower = replace(chain, time_s=time_s + 1)
    assert best_placement(slower, 30).bound_s == pytest.approx(16.0)


def test_periods_are_found_behind_and_before_others() -> None:
    assert periods_of("abbbbcdcdcde") == [(1, 1), (1, 4), (2, 3), (1, 1)]
