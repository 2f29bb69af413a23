"""Pictures of plans and other results. A plot function draws on `ax`, by default on new Axes, and returns the Axes.

>>> from dlplacer.report.plot import plot_gantt, save_picture
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
