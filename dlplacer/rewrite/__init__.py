"""OpGraph → OpGraph: the same step with fewer ops, and the way back."""

from dlplacer.rewrite.contract import contract
from dlplacer.rewrite.expand import expanded_order, expanded_plan
from dlplacer.rewrite.granularity import coarsen

__all__ = ["coarsen", "contract", "expanded_order", "expanded_plan"]
