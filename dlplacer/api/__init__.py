"""The functions of ``import dlplacer as dp``: names, paths, values and option words in, values out.

They turn arguments into the values that the packages below work with, refuse invalid ones, and call those packages.
They decide nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
