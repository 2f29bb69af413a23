"""The state of a placed module: its job's parameters and buffers."""

from typing import Any, NoReturn

from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.frontend.torch.job import Job

_SHARED = ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set")
_EXTRA = "_extra_state"
"""Under this key torch saves what `torch.nn.Module.get_extra_state` gives."""


class PlacedState(nn.Module):
    """A module with the parameters, buffers and sub-modules of a job's module."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        # The very dictionaries of the job's module, not copies: state dicts, hooks and ``named_parameters`` are its
        # own.
        for name in _SHARED:
            self.__dict__[name] = job.module.__dict__[name]
        self._job = job

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


def _overrides(module: nn.Module, method: str) -> bool:
    return getattr(type(module), method) is not getattr(nn.Module, method)
