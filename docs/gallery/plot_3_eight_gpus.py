"""
Eight GPUs, one model
=====================

Beyond two or three devices a single step of Inception-V3 has too little to do at once: the critical path holds the step
up, and most devices are idle most of the time. See :doc:`/sharp_bits` for what helps instead.
"""

import dlplacer as dp
from dlplacer.report.plot import plot_gantt, plot_memory

graph = dp.load_graph("inception_v3-train")
result = dp.place(graph, dp.load_topology("dgx1-v100-8gpu"), time_limit_s=5)

# %%
# Below each device a narrow row shows what arrives there.

plot_gantt(result.plan)

# %%
# Memory of many devices has a row each, all on one scale.

plot_memory(result.plan)
