"""What data parallelism adds to a step: which parameters travel together, what goes on the wire, and how often."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
