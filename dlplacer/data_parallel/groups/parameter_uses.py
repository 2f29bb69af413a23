"""Where a step uses the parameters of its module, and in which order backward finishes their gradients."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ParameterUses:
    """What one step of a module tells about its parameters.

    A tied parameter counts once, under the first of its names.

    Attributes
    ----------
    gradient_order
        The parameters in the order in which the autograd engine finishes their gradients.
    unused
        Parameters that require a gradient and get none.
    holders
        Parameter → path of the innermost module within whose one call it is used ("" for the whole module): where
        sharded parameters can be gathered before their first use and freed after the last. A parameter that is used
        outside the module, as by a loss, has none.
    calls
        Paths of the holders in the order in which they are called.
    """

    gradient_order: tuple[str, ...]
    unused: tuple[str, ...]
    holders: Mapping[str, str]
    calls: tuple[str, ...]
