"""Which layers' parameters travel together: the batching problem of iBatch (Mai et al. 2020), solved exactly."""

from dlplacer.dataparallel.groups.chain import LayerChain
from dlplacer.dataparallel.groups.exact import best_groups
from dlplacer.dataparallel.groups.timeline import makespan_s

__all__ = ["LayerChain", "best_groups", "makespan_s"]
