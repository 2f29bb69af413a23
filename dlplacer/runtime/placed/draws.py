"""What random ops draw from: ``torch.manual_seed``, the number of the step since then, and the op's id."""

from typing import Any

import torch


class Draws:
    """The seed of a placed module's random ops, which follows torch's.

    Steps take one number each from torch's generator, as plain PyTorch takes many: so a later ``torch.manual_seed``
    with the same seed is seen too, and starts the sequence again. What a user draws in between changes nothing.
    """

    def __init__(self) -> None:
        self._base: int | None = None
        self._start = 0
        self._seed = 0
        self._left: torch.Tensor | None = None

    def begin_step(self, steps_done: int) -> None:
        """Look at torch's seed; this is the `steps_done`-th step of the module."""
        seed, state = torch.initial_seed(), torch.get_rng_state()
        if self._base is None or seed != self._seed or self._is_fresh(state, seed):
            self._base, self._start, self._seed = seed, steps_done - 1, seed
        torch.randint(2, ())
        self._left = torch.get_rng_state()

    def number(self, steps_done: int) -> tuple[int, int]:
        """Seed, and number of the step among those since the seed was set."""
        return (torch.initial_seed(), 0) if self._base is None else (self._base, steps_done - self._start)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the same numbers."""
        return {"base": self._base, "start": self._start}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, until the next ``torch.manual_seed``."""
        self._base, self._start = saved["base"], saved["start"]
        self._seed, self._left = torch.initial_seed(), torch.get_rng_state()

    def _is_fresh(self, state: torch.Tensor, seed: int) -> bool:
        """Whether the generator was seeded since it was looked at last, and has drawn nothing yet."""
        if self._left is not None and torch.equal(state, self._left):
            return False
        return torch.equal(state, torch.Generator().manual_seed(seed).get_state())
