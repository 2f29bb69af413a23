"""Pictures of plans and other results. Every plot function draws on the given Axes, or new ones, and returns them.

>>> from dlplacer.report.plot import plot_gantt, save_picture
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
