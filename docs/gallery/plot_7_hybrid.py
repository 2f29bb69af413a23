"""
Data parallelism, model parallelism or both
===========================================

With the paper's inputs for Inception-V3: epochs that grow with the batch, and a speedup of 1.32 for a worker of two
devices. From some number of devices on, workers of two beat twice as many workers of one.
"""

from dlplacer.planning.hybrid import (
    EpochsTable,
    HybridProblem,
    SpeedupTable,
    StatisticalEfficiency,
    Work,
    plan_hybrid,
)
from dlplacer.report.plot import plot_hybrid

epochs = StatisticalEfficiency(EpochsTable({32: 4, 64: 7, 128: 12, 256: 23}))
plan = plan_hybrid(HybridProblem(Work(step_s=0.1), epochs, SpeedupTable({2: 1.32})), devices=256)
print(f"at 256 devices: {plan.at(256).against_same_devices:.3f} of data parallelism on as many")
plot_hybrid(plan)
