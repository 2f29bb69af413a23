"""The state of a placed module: its job's parameters and buffers, and the numbers that its random ops draw from."""

from typing import Any, NoReturn

import torch
from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.job import Job

_SHARED = ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set")
_SAVED = "dlplacer"
"""Under this name the metadata of a state dict holds what random ops draw from."""
_EXTRA = "_extra_state"
"""Under this key torch saves what `torch.nn.Module.get_extra_state` gives."""


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

    def begin(self, steps_done: int, evaluates: bool = False) -> None:
        """Look at torch's seed before the step that follows `steps_done` steps, or take a number for an evaluation."""
        seed, state = torch.initial_seed(), torch.get_rng_state()
        if self._base is None or seed != self._seed or self._is_fresh(state, seed):
            self._base, self._start, self._seed, self._evaluations = seed, steps_done, seed, 0
        torch.randint(2, ())
        self._left = torch.get_rng_state()
        self._evaluations += evaluates

    def drawn(self, steps_done: int, evaluates: bool) -> tuple[int, int]:
        """Seed, and number of the last step since the seed was set; of the last evaluation, below 0."""
        if self._base is None:
            return torch.initial_seed(), 0
        return self._base, -self._evaluations if evaluates else steps_done - self._start

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on with the same numbers."""
        return {"base": self._base, "start": self._start, "evaluations": self._evaluations}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, until the next ``torch.manual_seed``."""
        self._base, self._start = saved["base"], saved["start"]
        self._evaluations = saved.get("evaluations", 0)
        self._seed, self._left = torch.initial_seed(), torch.get_rng_state()

    def _is_fresh(self, state: torch.Tensor, seed: int) -> bool:
        """True if the generator was seeded since it was looked at last, and has drawn nothing yet."""
        if self._left is not None and torch.equal(state, self._left):
            return False
        return torch.equal(state, torch.Generator().manual_seed(seed).get_state())


class PlacedState(nn.Module):
    """A module with the parameters, buffers and sub-modules of a job's module, and with numbers for random ops.

    With ``torch.manual_seed``, the number of the training step (`steps_done` so far) and the op's id, `seed` decides
    what random ops draw, whatever the placement. A state dict carries seed and number.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        # The very dictionaries of the job's module, not copies: state dicts, hooks and ``named_parameters`` are its
        # own.
        for name in _SHARED:
            self.__dict__[name] = job.module.__dict__[name]
        self._job = job
        self.seed = 0
        self.steps_done = 0
        self.draws = Draws()

    def drawn_with(self, seed: int, evaluates: bool = False) -> tuple[int, int]:
        """Seed and number from which the last step or evaluation drew, had `seed` been that of this module."""
        base, number = self.draws.drawn(self.steps_done, evaluates)
        return (base << 64) + seed, number

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse what would change the job's module if this were it, and changes nothing here."""
        job = self.__dict__.get("_job")
        if job is not None and name not in self.__dict__ and name in job.module.__dict__:
            raise AttributeError(
                f"{name!r} is an attribute of the module that the job was made of; set it there, and the next step "
                "sees it"
            )
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse: threads and devices are of this process."""
        raise InputError(
            "a placed module is bound to the devices of this process and cannot be saved; save its state, "
            "torch.save(placed.state_dict(), file), and the plan, and load them into dlplacer.apply(job, plan, devices)"
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        module = self._job.module
        if _overrides(module, "get_extra_state"):
            destination[prefix + _EXTRA] = module.get_extra_state()
        # In the metadata, which torch saves with it: a key of its own would not load into the plain module.
        if hasattr(destination, "_metadata"):
            found = {"seed": self.seed, "steps_done": self.steps_done, "draws": self.draws.state_dict()}
            destination._metadata.setdefault(prefix[:-1], {})[_SAVED] = found

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        unexpected: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected, error_msgs)
        module, key = self._job.module, prefix + _EXTRA
        has_extra = _overrides(module, "set_extra_state")
        unexpected_keys += [name for name in unexpected if not (has_extra and name == key)]
        if has_extra and key in state_dict:
            module.set_extra_state(state_dict[key])
        elif has_extra and strict:
            missing_keys.append(key)
        saved = local_metadata.get(_SAVED)
        if saved is not None:
            self.seed, self.steps_done = saved["seed"], saved["steps_done"]
            self.draws.load_state_dict(saved["draws"])


def _overrides(module: nn.Module, method: str) -> bool:
    return getattr(type(module), method) is not getattr(nn.Module, method)
