"""OpGraph → OpGraph: the same step with fewer ops, and its plans back in the ops of the original."""

from dlplacer.planning.coarsen.contract import contract, expanded_plan
from dlplacer.planning.coarsen.granularity import coarsen

__all__ = ["coarsen", "contract", "expanded_plan"]
