"""
Data parallelism, model parallelism or both
===========================================

With what the paper's text gives of Inception-V3: epochs at 32, 64 and 256 GPUs, between them on a line, and a speedup
of 1.32 for a worker of two devices. From some number of devices on, workers of two beat twice as many workers of one.
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

epochs = StatisticalEfficiency(EpochsTable({32: 4, 64: 7, 256: 23}))
plan = plan_hybrid(HybridProblem(Work(step_s=0.1), epochs, SpeedupTable({2: 1.32})), devices=256)
print(f"at 64 devices: {plan.at(64).against_same_devices:.3f} of data parallelism on as many")
print(f"there a worker of two must be {plan.speedup_needed(64):.3f} times as fast as one of one (equation 6)")
plot_hybrid(plan)
