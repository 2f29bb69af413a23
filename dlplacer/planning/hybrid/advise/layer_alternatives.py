"""One alternative for each layer, of least total time within a memory bound: a multiple-choice knapsack (eq. 6)."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlplacer.core.errors import InfeasibleError, InputError


@dataclass(frozen=True, slots=True)
class Alternative:
    """An alternative for running a layer: seconds and bytes that it adds."""

    name: str
    time_s: float
    memory_bytes: int

    def __post_init__(self) -> None:
        if not (self.time_s >= 0 and self.memory_bytes >= 0):
            raise InputError(
                f"alternative {self.name!r}: {self.time_s} s and {self.memory_bytes} bytes; both must be at least 0"
            )


@dataclass(frozen=True, slots=True)
class LayerAlternatives:
    """The chosen alternative of every layer and their sums."""

    alternatives: tuple[Alternative, ...]

    @property
    def time_s(self) -> float:
        """Σ T."""
        return sum(alternative.time_s for alternative in self.alternatives)

    @property
    def memory_bytes(self) -> int:
        """Σ M."""
        return sum(alternative.memory_bytes for alternative in self.alternatives)


def choose_alternatives(layers: Sequence[Sequence[Alternative]], bound_bytes: int) -> LayerAlternatives:
    """The choice of least time, solved exactly as an integer program with HiGHS.

    Raises
    ------
    InfeasibleError
        If even the smallest alternatives of all layers exceed the bound.
    InputError
        If a layer has no alternatives.
    """
    for position, alternatives in enumerate(layers):
        if not alternatives:
            raise InputError(f"layer {position} has no alternatives; give at least one")
    least_bytes = sum(min(alternative.memory_bytes for alternative in alternatives) for alternatives in layers)
    if least_bytes > bound_bytes:
        raise InfeasibleError(
            f"the smallest alternatives of all {len(layers)} layers need {least_bytes} bytes; the bound is "
            f"{bound_bytes}: use a smaller mini-batch or a device with more memory"
        )
    kept = [_efficient(alternatives) for alternatives in layers]
    fastest = LayerAlternatives(tuple(alternatives[0] for alternatives in kept))
    return fastest if fastest.memory_bytes <= bound_bytes else _solved(kept, bound_bytes)


def _efficient(alternatives: Sequence[Alternative]) -> list[Alternative]:
    """Alternatives that no other beats in both time and memory, fastest first."""
    kept: list[Alternative] = []
    for alternative in sorted(alternatives, key=lambda alternative: (alternative.time_s, alternative.memory_bytes)):
        if not kept or alternative.memory_bytes < kept[-1].memory_bytes:
            kept.append(alternative)
    return kept


def _solved(layers: Sequence[Sequence[Alternative]], bound_bytes: int) -> LayerAlternatives:
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    flat = [alternative for alternatives in layers for alternative in alternatives]
    owner = [layer for layer, alternatives in enumerate(layers) for _ in alternatives]
    one_each = csr_array((np.ones(len(flat)), (owner, range(len(flat)))), shape=(len(layers), len(flat)))
    slowest_s = max(alternative.time_s for alternative in flat) or 1.0
    scale = max(1, bound_bytes)
    memory = LinearConstraint(
        np.array([[alternative.memory_bytes / scale for alternative in flat]]), 0, bound_bytes / scale
    )
    constraints = [LinearConstraint(one_each, 1, 1), memory]
    while True:
        result = milp(
            [alternative.time_s / slowest_s for alternative in flat],
            integrality=np.ones(len(flat)),
            bounds=Bounds(0, 1),
            constraints=constraints,
            options={"mip_rel_gap": 0.0},
        )
        taken = result.x > 0.5
        chosen = LayerAlternatives(
            tuple(alternative for alternative, is_taken in zip(flat, taken, strict=True) if is_taken)
        )
        if chosen.memory_bytes <= bound_bytes:
            return chosen
        # HiGHS allows a row to be exceeded by a relative 1e-6, but bytes are exact: rule this one choice out.
        constraints.append(LinearConstraint(taken.astype(float)[None, :], 0, len(layers) - 1))
