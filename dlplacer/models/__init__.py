"""Builders of jobs to plan, named on the command line as ``dlplacer.models:inception_v3``.

A builder takes ``batch_size`` and other keyword arguments, all with defaults, and returns a `dlplacer.Job` in mode
``train`` on random data. The same ``seed`` gives the same weights and data, and the global random state is unchanged.
Under a fake tensor mode nothing is allocated. The first use of a builder loads torch. Networks have no dropout. Image
classifiers take ``image_size``, height and width in pixels.
"""

import lazy_loader

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its builders are {', '.join(__all__)}")
    return _attribute(name)
