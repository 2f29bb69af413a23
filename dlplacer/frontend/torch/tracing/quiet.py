"""The state of torch in which a step is traced: none of the caller's modes, and no output on the terminal."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

_LEVELS = ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log")

TRACED_ON = torch.device("cpu")
"""Where stand-ins of tensors live while a step is traced, whatever device it will run on."""
# Fake tensors on a GPU end the process: without a GPU, a wheel aborts in the first backward ("terminate called after
# throwing an instance of 'c10::Error'"), which no handler can catch.


def autocast_types() -> tuple[str, ...]:
    """Torch's types of the devices for which the caller may have switched autocast on: CPUs and this build's GPUs."""
    accelerator = torch.accelerator.current_accelerator()
    return (TRACED_ON.type,) if accelerator is None else (TRACED_ON.type, accelerator.type)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Switch off the caller's inference mode, autocast and fake tensor mode, and all warnings."""
    with (
        quiet(),
        _autocast_as_it_was(),
        unset_fake_temporarily(),
        torch.inference_mode(False),
        torch.autocast(TRACED_ON.type, dtype=torch.bfloat16, enabled=False),
    ):
        yield


@contextlib.contextmanager
def _autocast_as_it_was() -> Iterator[None]:
    """Restore the state and the depth of autocast afterwards.

    A traced graph enters and leaves autocast by calls, and would stay in it if it failed in between. Autocast would
    then keep its casts of weights for ever, and plain training would read old weights.
    """
    kinds = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in autocast_types()}
    caches, depth = torch.is_autocast_cache_enabled(), torch.autocast_increment_nesting()
    try:
        yield
    finally:
        for kind, (enabled, dtype) in kinds.items():
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(caches)
        # A trace that failed inside autocast never left it; the depth at entry says how often it has to be left now.
        left = torch.autocast_decrement_nesting()
        while left >= depth:
            left = torch.autocast_decrement_nesting()
        if left == 0:
            torch.clear_autocast_cache()


@contextlib.contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Collect the warnings of torch's tracing, which warns and logs about its own internals."""
    logger = logging.getLogger("torch")
    level = logger.level
    with warnings.catch_warnings(record=True) as caught:
        # "always": by default Python shows a warning once per line, and what is collected would depend on what ran
        # before.
        warnings.simplefilter("always")
        logger.setLevel(logging.CRITICAL)
        try:
            yield caught
        finally:
            logger.setLevel(level)


def spoken() -> set[Callable[..., Any]]:
    """Functions that a model calls only to inform its user, which tracing may therefore omit.

    Libraries add such methods to all loggers, as transformers does with ``warning_once``.
    """
    methods = {name: method for name, method in vars(logging.Logger).items() if callable(method)}
    added = {method for method in methods.values() if getattr(method, "__module__", "logging") != "logging"}
    return {print, warnings.warn, *(methods[name] for name in _LEVELS if name in methods), *added}
