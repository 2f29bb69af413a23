"""Pictures of a plan, or of a comparison. Every plot function draws on one matplotlib Axes, which it returns.

>>> from dlplacer.report.plot import plot_gantt, save_picture
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
