"""Coarser graphs of the same step, with fewer ops, and the expansion of their plans to the original ops."""

from dlplacer.planning.coarsen.contract import contract, expanded_plan
from dlplacer.planning.coarsen.granularity import coarsen

__all__ = ["coarsen", "contract", "expanded_plan"]
