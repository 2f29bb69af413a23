"""Where every op of a model should run, how good that plan is, and running it there.

>>> import dlplacer as dp
>>> graph = dp.load_graph("inception_v3-train")
>>> result = dp.place(graph, dp.load_topology("dgx1-v100-2gpu"), time_limit_s=10)
>>> result.status in ("optimal", "feasible")
True
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
