"""What data parallelism adds to a step: which parameters travel together, and what goes on the wire for them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
