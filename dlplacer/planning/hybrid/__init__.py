"""The choice of parallelism for N devices by step time × steps × epochs (Pal et al. 2019, sections 3–5).

>>> from dlplacer.planning.hybrid import EpochsTable, HybridProblem, SpeedupTable, StatisticalEfficiency, Work
>>> from dlplacer.planning.hybrid import plan_hybrid
>>> efficiency = StatisticalEfficiency(EpochsTable({32: 4, 64: 7}))
>>> plan = plan_hybrid(HybridProblem(Work(step_s=0.1), efficiency, SpeedupTable({2: 1.32})), devices=64)
>>> round(plan.at(64).against_same_devices, 3)
1.155
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
