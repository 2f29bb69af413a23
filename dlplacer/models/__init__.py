"""Builders of jobs to plan, named on the command line as ``dlplacer.models:inception_v3``.

A builder takes ``batch_size`` and other keyword arguments, all with defaults, and returns a `dlplacer.Job` in mode
``train``. The same ``seed`` gives the same weights and data, and the global random state stays as it was. Under a fake
tensor mode nothing is allocated. torch is loaded on the first use of a builder, not before.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlplacer.models.alex import alexnet
    from dlplacer.models.branching import branches
    from dlplacer.models.google import googlenet
    from dlplacer.models.inception import inception_v3
    from dlplacer.models.language import big_lstm
    from dlplacer.models.perceptron import mlp
    from dlplacer.models.resnet import resnet50
    from dlplacer.models.translation import gnmt
    from dlplacer.models.vgg import vgg19

__all__ = ["alexnet", "big_lstm", "branches", "gnmt", "googlenet", "inception_v3", "mlp", "resnet50", "vgg19"]

_FILE_OF = {
    "alexnet": "alex",
    "big_lstm": "language",
    "branches": "branching",
    "gnmt": "translation",
    "googlenet": "google",
    "inception_v3": "inception",
    "mlp": "perceptron",
    "resnet50": "resnet",
    "vgg19": "vgg",
}


def __getattr__(name: str) -> object:
    if name not in _FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its builders are {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_FILE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
