"""One way of running each layer, of least total time within a memory bound: a multiple-choice knapsack (eq. 6)."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.errors import InfeasibleError, InputError


@dataclass(frozen=True, slots=True)
class Way:
    """A way of running a layer: seconds and bytes that it adds."""

    name: str
    time_s: float
    memory_bytes: int

    def __post_init__(self) -> None:
        if not (self.time_s >= 0 and self.memory_bytes >= 0):
            raise InputError(
                f"way {self.name!r}: {self.time_s} s and {self.memory_bytes} bytes; both must be at least 0"
            )


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen way of every layer and their sums."""

    ways: tuple[Way, ...]

    @property
    def time_s(self) -> float:
        """Σ T."""
        return sum(way.time_s for way in self.ways)

    @property
    def memory_bytes(self) -> int:
        """Σ M."""
        return sum(way.memory_bytes for way in self.ways)


def choose_ways(layers: Sequence[Sequence[Way]], bound_bytes: int) -> Choice:
    """The choice of least time, solved exactly as an integer program with HiGHS.

    Raises
    ------
    InfeasibleError
        If even the smallest ways of all layers exceed the bound.
    InputError
        If a layer has no ways.
    """
    for position, ways in enumerate(layers):
        if not ways:
            raise InputError(f"layer {position} has no ways of running; give at least one")
    least_bytes = sum(min(way.memory_bytes for way in ways) for ways in layers)
    if least_bytes > bound_bytes:
        raise InfeasibleError(
            f"the smallest ways of all {len(layers)} layers need {least_bytes} bytes; the bound is {bound_bytes}: "
            "use a smaller mini-batch or a device with more memory"
        )
    kept = [_efficient(ways) for ways in layers]
    fastest = Choice(tuple(ways[0] for ways in kept))
    return fastest if fastest.memory_bytes <= bound_bytes else _solved(kept, bound_bytes)


def _efficient(ways: Sequence[Way]) -> list[Way]:
    """Ways that no other beats in both time and memory, fastest first."""
    kept: list[Way] = []
    for way in sorted(ways, key=lambda way: (way.time_s, way.memory_bytes)):
        if not kept or way.memory_bytes < kept[-1].memory_bytes:
            kept.append(way)
    return kept


def _solved(layers: Sequence[Sequence[Way]], bound_bytes: int) -> Choice:
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    flat = [way for ways in layers for way in ways]
    owner = [layer for layer, ways in enumerate(layers) for _ in ways]
    one_each = csr_array((np.ones(len(flat)), (owner, range(len(flat)))), shape=(len(layers), len(flat)))
    slowest_s = max(way.time_s for way in flat) or 1.0
    scale = max(1, bound_bytes)
    memory = LinearConstraint(np.array([[way.memory_bytes / scale for way in flat]]), 0, bound_bytes / scale)
    constraints = [LinearConstraint(one_each, 1, 1), memory]
    while True:
        result = milp(
            [way.time_s / slowest_s for way in flat],
            integrality=np.ones(len(flat)),
            bounds=Bounds(0, 1),
            constraints=constraints,
            options={"mip_rel_gap": 0.0},
        )
        taken = result.x > 0.5
        chosen = Choice(tuple(way for way, is_taken in zip(flat, taken, strict=True) if is_taken))
        if chosen.memory_bytes <= bound_bytes:
            return chosen
        # HiGHS allows a row to be exceeded by a relative 1e-6, but bytes are exact: rule this one choice out.
        constraints.append(LinearConstraint(taken.astype(float)[None, :], 0, len(layers) - 1))
