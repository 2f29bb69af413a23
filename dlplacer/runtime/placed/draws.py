"""What random ops draw from: ``torch.manual_seed``, the number of the step or evaluation since, and the op's id."""

from typing import Any

import torch


class Draws:
    """The seed of a placed module's random ops, which follows torch's.

    Steps take one number each from torch's generator, as plain PyTorch takes many: so a later ``torch.manual_seed``
    with the same seed is seen too, and starts the sequence again. What a user draws in between changes nothing.
    Evaluations that draw have numbers of their own: they do not change what the next training step draws.
    """

    def __init__(self) -> None:
        self._base: int | None = None
        self._start = 0
        self._evaluations = 0
        self._seed = 0
        self._left: torch.Tensor | None = None

    def begin_step(self, steps_done: int) -> None:
        """Look at torch's seed; this is the `steps_done`-th step of the module."""
        self._follow(steps_done - 1)

    def begin_evaluation(self, steps_done: int) -> None:
        """Look at torch's seed, and take the next number for an evaluation after `steps_done` steps."""
        self._follow(steps_done)
        self._evaluations += 1

    def _follow(self, steps_done: int) -> None:
        seed, state = torch.initial_seed(), torch.get_rng_state()
        if self._base is None or seed != self._seed or self._is_fresh(state, seed):
            self._base, self._start, self._seed, self._evaluations = seed, steps_done, seed, 0
        torch.randint(2, ())
        self._left = torch.get_rng_state()

    def number(self, steps_done: int) -> tuple[int, int]:
        """Seed, and number of the step among those since the seed was set."""
        return (torch.initial_seed(), 0) if self._base is None else (self._base, steps_done - self._start)

    def evaluation(self) -> tuple[int, int]:
        """Seed, and number of the last evaluation since it was set, below 0."""
        return (torch.initial_seed() if self._base is None else self._base), -self._evaluations

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the same numbers."""
        return {"base": self._base, "start": self._start, "evaluations": self._evaluations}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, until the next ``torch.manual_seed``."""
        self._base, self._start = saved["base"], saved["start"]
        self._evaluations = saved.get("evaluations", 0)
        self._seed, self._left = torch.initial_seed(), torch.get_rng_state()

    def _is_fresh(self, state: torch.Tensor, seed: int) -> bool:
        """Whether the generator was seeded since it was looked at last, and has drawn nothing yet."""
        if self._left is not None and torch.equal(state, self._left):
            return False
        return torch.equal(state, torch.Generator().manual_seed(seed).get_state())
