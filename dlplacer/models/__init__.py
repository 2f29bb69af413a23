"""Builders of jobs to plan, named on the command line as ``dlplacer.models:inception_v3``.

A builder takes ``batch_size`` and other keyword arguments, all with defaults, and returns a `dlplacer.Job` in mode
``train``. The same ``seed`` gives the same weights and data, and the global random state stays as it was. Under a fake
tensor mode nothing is allocated. torch is loaded on the first use of a builder, not before.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlplacer.models.branching import branches
    from dlplacer.models.inception import inception_v3
    from dlplacer.models.perceptron import mlp

__all__ = ["branches", "inception_v3", "mlp"]

_FILE_OF = {"branches": "branching", "inception_v3": "inception", "mlp": "perceptron"}


def __getattr__(name: str) -> object:
    if name not in _FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its builders are {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_FILE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
