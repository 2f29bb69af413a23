"""
Inception-V3 on two GPUs
========================

The paper's main example: a training step of Inception-V3, batch 32, on the first two GPUs of a DGX-1. Five seconds of
search; more time closes the gap further.
"""

import dlplacer as dp
from dlplacer.report.plot import plot_gantt, plot_memory, plot_placement

graph = dp.load_graph("inception_v3-train")
result = dp.place(graph, dp.load_topology("dgx1-v100-2gpu"), time_limit_s=5)
print(f"{result.status}: {1e3 * result.plan.makespan_s:.1f} ms, gap {result.plan.gap:.1%}, {result.speedup:.2f}x")

# %%
# Devices and links over time. The red line is the critical path: what makes the step as long as it is.

plot_gantt(result.plan)

# %%
# The dataflow graph, every op in the colour of its device.

plot_placement(result.plan)

# %%
# What is alive on each device.

plot_memory(result.plan)
