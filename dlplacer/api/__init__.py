"""The functions of ``import dlplacer as dp``: names, paths, values and option words in, values out.

A function turns its arguments into the values that other packages work with, refuses invalid arguments, and calls
these packages. It decides nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
