"""Training on many devices: gradients in groups and in two bits, and workers that synchronise periodically.

>>> import dlplacer as dp
>>> from dlplacer.data_parallel import plan_groups
>>> from dlplacer.models import inception_v3
>>> plan = plan_groups(inception_v3(batch_size=8), dp.load_topology("pcie-4gpu"))
>>> plan.ddp_kwargs().keys()
dict_keys(['bucket_cap_mb_list'])
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
