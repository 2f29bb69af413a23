"""What a placed module shares with its job's module, and what its random ops draw from: saved, loaded, protected."""

from typing import Any, NoReturn

from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.placed.draws import Draws

_SHARED = ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set")
_SAVED = "dlplacer"
"""Under this name the metadata of a state dict holds what random ops draw from."""
_EXTRA = "_extra_state"
"""Under this key torch saves what `torch.nn.Module.get_extra_state` gives."""


class PlacedState(nn.Module):
    """A module with the parameters, buffers and sub-modules of a job's module, and with numbers for random ops.

    Attributes
    ----------
    seed
        With ``torch.manual_seed``, the number of the training step and the op's id it decides what random ops draw,
        whatever the placement. A state dict carries seed and number.
    steps_done
        Training steps so far.
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
        base, number = self.draws.evaluation() if evaluates else self.draws.number(self.steps_done)
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
