"""
The default method beside the heuristics of the literature
==========================================================

``compare`` solves one problem with every method and holds each plan against the best lower bound.
"""

import dlplacer as dp

graph = dp.load_graph("inception_v3-infer")
comparison = dp.compare(graph, dp.load_topology("dgx1-v100-2gpu"), time_limit_s=4)
rows = comparison.to_frame()
print(rows[["method", "makespan_s", "gap"]].to_string(index=False))
rows.plot.barh("method", "makespan_s", xlabel="makespan, s", legend=False, figsize=(7, 4)).figure.tight_layout()
