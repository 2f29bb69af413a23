"""The functions of ``import dlplacer as dp``: names, paths, values and option words in, values out.

They turn what they are given into the values that the rooms below work with, refuse what cannot be meant, and call the
rooms. They decide nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
