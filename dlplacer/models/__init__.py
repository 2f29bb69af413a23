"""Builders of jobs to plan, named on the command line as ``dlplacer.models:inception_v3``.

A builder takes ``batch_size`` and other keyword arguments, all with defaults, and returns a `dlplacer.Job` in mode
``train``. The same ``seed`` gives the same weights and data, and the global random state stays as it was. Under a fake
tensor mode nothing is allocated. torch is loaded on the first use of a builder, not before.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
