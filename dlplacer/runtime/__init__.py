"""From a plan to a program, and to a module that runs it on the planned devices."""

from dlplacer.runtime.placed.apply import apply
from dlplacer.runtime.placed.placed_module import PlacedModule

__all__ = ["PlacedModule", "apply"]
