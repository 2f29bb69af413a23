"""
A pipeline of micro-batches
===========================

Where op placement runs out of parallel work, micro-batches make more of it. Rows are devices, colours micro-batches.
"""

import dlplacer as dp
from dlplacer.planning.pipeline.pipeline_search import Search
from dlplacer.report.plot import plot_pipeline

search = Search(dp.load_graph("inception_v3-train"), dp.load_topology("dgx1-v100-4gpu"))
plan = search.plan(4, 8, "1f1b")
print(f"{1e3 * plan.step_s:.1f} ms per step, bubble {100 * plan.timeline.bubble:.0f} %")
plot_pipeline(plan)
