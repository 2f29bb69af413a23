"""
A graph of your own, solved by hand
===================================

Three ops on two devices: small enough to check the answer with a pencil.
"""

import dlplacer as dp
from dlplacer.report.plot import plot_gantt

# %%
# ``x`` feeds two branches, which meet in ``join``. A tensor of 4 bytes takes 1 s of latency and 2 s for the bytes.

ops = (
    dp.Op("x", "conv", time_s=2.0),
    dp.Op("left", "conv", time_s=4.0),
    dp.Op("right", "conv", time_s=5.0),
    dp.Op("join", "add", time_s=1.0),
)
edges = (
    dp.Edge("x", "left", 4, tensor="x.out"),
    dp.Edge("x", "right", 4, tensor="x.out"),
    dp.Edge("left", "join", 2),
    dp.Edge("right", "join", 2),
)
graph = dp.OpGraph(ops, edges, name="two branches")
devices = (dp.Device("a", "core"), dp.Device("b", "core"))
machine = dp.Topology(devices, links=(dp.Link("a", "b", bytes_per_s=2.0, latency_s=1.0),), name="two cores")

# %%
# On one device the step takes 12 s. With the longer branch on the producer's device and the shorter one on the other,
# ``left`` starts at 2 + 3 = 5, ends at 9, and its result is back at 11: the step takes 12 s as well. So nothing is
# gained, and that is proven.

result = dp.place(graph, machine, time_limit_s=5)
print(result.status, result.plan.makespan_s, "bound", result.plan.lower_bound_s)

# %%
# A link without latency, twice as fast, changes that: ``left`` runs from 3 to 7 and its result arrives at 7.5.

faster = dp.Topology(devices, links=(dp.Link("a", "b", bytes_per_s=4.0),), name="two cores")
result = dp.place(graph, faster, time_limit_s=5)
print(result.status, result.plan.makespan_s, {op: str(device) for op, device in result.plan.placement.items()})
plot_gantt(result.plan)
