"""
The default method beside the heuristics of the literature
==========================================================

``compare`` solves one problem with every method and holds each plan against the best lower bound.
"""

import dlplacer as dp
from dlplacer.report.plot import plot_comparison

graph = dp.load_graph("inception_v3-infer")
comparison = dp.compare(graph, dp.load_topology("dgx1-v100-2gpu"), time_limit_s=4)
print(comparison.to_frame()[["method", "makespan_s", "gap"]].to_string(index=False))
plot_comparison(comparison)
