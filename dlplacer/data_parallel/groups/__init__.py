"""Which layers' parameters travel together: the batching problem of iBatch (Mai et al. 2020), solved exactly."""

from dlplacer.data_parallel.groups.exact_groups import best_groups
from dlplacer.data_parallel.groups.layer_chain import LayerChain
from dlplacer.data_parallel.groups.message_timeline import makespan_s

__all__ = ["LayerChain", "best_groups", "makespan_s"]
