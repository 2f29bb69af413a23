"""Groups of layers that send parameters together: an exact solver for iBatch's batching problem (Mai et al. 2020)."""

from dlplacer.data_parallel.groups.layer_chain import LayerChain, best_groups, makespan_s

__all__ = ["LayerChain", "best_groups", "makespan_s"]
