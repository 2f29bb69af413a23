"""A plan over several processes: the same programs over torch.distributed, and replicas that share their gradients."""

from dlplacer.distributed.apply import apply_ranks
from dlplacer.distributed.module import RankModule
from dlplacer.distributed.replicate import replicated_plan

__all__ = ["RankModule", "apply_ranks", "replicated_plan"]
