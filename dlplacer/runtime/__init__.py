"""Plan → program → a module that runs on the planned devices."""

from dlplacer.runtime.apply import apply
from dlplacer.runtime.placed import PlacedModule

__all__ = ["PlacedModule", "apply"]
