"""Device placement for deep learning: a device for every op of a model, a bound on the step time, and a runtime.

>>> import dlplacer as dp
>>> result = dp.place("inception_v3-infer", "dgx1-v100-2gpu", time_limit_s=2)
>>> result
<Result: ..., ... ms, gap ... %, speedup ...x over the best single device; method ilp, ... s>
>>> result.save("plan.json")  # doctest: +SKIP
PosixPath('plan.json')
"""

import lazy_loader

from dlplacer.core.abilities import PROVIDERS

PROVIDERS.update(save="dlplacer.files.load:save", html="dlplacer.api.showing:html", table="dlplacer.api.views:table_of")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
