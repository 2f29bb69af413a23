"""OpGraph → OpGraph: the same step with fewer ops; plans of it are expanded to the original ops."""

from dlplacer.planning.coarsen.contract import contract, expanded_plan
from dlplacer.planning.coarsen.granularity import coarsen

__all__ = ["coarsen", "contract", "expanded_plan"]
