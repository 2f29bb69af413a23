"""
Machines
========

The topologies that ship, every number with its source in the file.
"""

import dlplacer as dp
from dlplacer.report.plot import plot_topology

# %%
# A DGX-1: NVLinks of one or two lanes, and PCIe switches under two sockets.

plot_topology(dp.load_topology("dgx1-v100-8gpu"))

# %%
# Four GPUs behind PCIe switches only.

plot_topology(dp.load_topology("pcie-4gpu"))
