"""Groups of layers that send parameters together: the batching problem of iBatch (Mai et al. 2020), solved exactly."""

from dlplacer.data_parallel.groups.layer_chain import LayerChain, best_groups, makespan_s

__all__ = ["LayerChain", "best_groups", "makespan_s"]
