"""Plans over several processes: programs over torch.distributed, and replicas that average their gradients."""

from dlplacer.runtime.distributed.rank_module import RankModule, apply_ranks
from dlplacer.runtime.distributed.replicate import replicated_plan

__all__ = ["RankModule", "apply_ranks", "replicated_plan"]
